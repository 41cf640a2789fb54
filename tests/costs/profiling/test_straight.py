"""The straight line computes what the reference runner computes and ticks after every op."""

from __future__ import annotations

import torch

from gnnplace.costs.profiling.straight import straight_line
from gnnplace.tracing.operations import set_step
from gnnplace.tracing.program import clone_initial
from tests.costs.profiling.programs import small
from tests.tracing.straight_run import run_program


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
