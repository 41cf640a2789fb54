"""Measured op times add up to the step's own time, and measuring changes nothing."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnnplace.costs.profiling.measurement import measure_ops, straight_line
from gnnplace.errors import ExecutionError, InputError
from gnnplace.tracing.program.operations import set_step
from gnnplace.tracing.program.program import Program, clone_initial
from tests.costs.profiling.programs import small
from tests.tracing.straight_run import run_program

TRIES = 3
"""Comparisons of two measurements: a neighbour of this machine disturbs one of them for some
seconds, and a measurement that is wrong disagrees each time."""


def step_seconds(program: Program) -> float:
    """Return the CPU seconds of a whole step on one thread, as `measure_ops` has it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = []
    try:
        for _ in range(8):
            start = time.thread_time()
            run_program(program)
            seconds.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return float(np.median(seconds))


@pytest.mark.alone  # it compares two measurements, and other tests would have the cores
def test_the_sum_is_near_the_step() -> None:
    program = small("mlp", batch=64, optimizer="sgd")
    before = {n: t.clone() for n, t in program.initial.items()}
    ratios = []
    for _ in range(TRIES):
        seconds, _ = measure_ops(program)
        assert seconds.shape == (len(program.ops),)
        assert (seconds >= 0).all()
        ratios.append(seconds.sum() / step_seconds(program))
        if 0.4 < ratios[-1] < 1.5:
            break
    assert 0.4 < ratios[-1] < 1.5, f"sum over step, {TRIES} times: {ratios}"
    assert all(torch.equal(before[n], program.initial[n]) for n in before)


def test_products_take_longer_than_views() -> None:
    program = small("mlp", batch=64, optimizer="sgd")
    seconds, _ = measure_ops(program)
    views = [s for s, op in zip(seconds, program.ops, strict=True) if op.view]
    products = [
        s for s, op in zip(seconds, program.ops, strict=True) if "mm" in op.name
    ]
    assert np.median(products) > 5 * np.median(views)


def test_a_failing_op_ends_with_one_line() -> None:
    program = small("mlp", width=8, depth=1)
    broken = replace(
        program.ops[0], args=(*program.ops[0].args, "too", "many", "arguments")
    )
    with pytest.raises(ExecutionError) as caught:
        measure_ops(replace(program, ops=(broken, *program.ops[1:])))
    assert "\n" not in str(caught.value)


def test_a_fake_capture_is_refused() -> None:
    with pytest.raises(InputError, match="captured without tensors"):
        measure_ops(replace(small("mlp", width=8, depth=1), initial={}))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_events_time_a_gpu() -> None:
    seconds, _ = measure_ops(small("mlp"), "cuda:0")
    assert seconds.sum() > 0


def test_same_state_and_one_tick_an_op() -> None:
    program = small()
    truth = run_program(program)
    inputs, ticks = clone_initial(program), []
    set_step(0)
    with torch.inference_mode():
        straight_line(program, torch.device("cpu"))(inputs, lambda: ticks.append(None))
    assert len(ticks) == len(program.ops) + 1
    for name, tensor in truth.state.items():
        assert torch.equal(inputs[name], tensor), name


def test_devices_among_arguments_are_replaced() -> None:
    program = small("mlp", "sgd", width=8, depth=1)
    meta = {name: t.to("meta") for name, t in program.initial.items()}
    straight_line(program, torch.device("meta"))(meta, lambda: None)
    assert any(op.name == "tangent" for op in program.ops)
