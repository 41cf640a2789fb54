"""M micro-batches equal M steps of gradient accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gnnplace import zoo
from gnnplace.errors import InputError
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.tracing.models import capture, capture_model
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program.microbatching import (
    with_inputs,
    with_program_microbatches,
)
from gnnplace.tracing.program.structure import program_graph
from tests.tracing import models
from tests.tracing.oracle import eager
from tests.tracing.straight_run import run_program

SIZES: dict[str, dict[str, int]] = {
    "small_resnet": {"batch": 8},
    "gpt2": {
        "batch": 4,
        "length": 8,
        "layers": 1,
        "width": 32,
        "heads": 2,
        "vocabulary": 50,
    },
}


def parts(inputs: Any, count: int) -> list[Any]:
    if isinstance(inputs, dict):
        cut = {k: t.chunk(count) for k, t in inputs.items()}
        return [{k: t[i] for k, t in cut.items()} for i in range(count)]
    return [tuple(t.chunk(count)[i] for t in inputs) for i in range(count)]


@pytest.mark.parametrize("name", sorted(SIZES))
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_equals_gradient_accumulation(name: str, optimizer: str) -> None:
    whole = zoo.build(name, **SIZES[name])
    pieces = parts(whole.inputs, 4)
    program = capture(whole.model, pieces[0], loss=whole.loss, optimizer=optimizer)
    cut = with_program_microbatches(program, 4)
    flat = [tuple(p.values()) if isinstance(p, dict) else p for p in pieces]
    result = run_program(with_inputs(cut, tuple(flat)))
    truth = eager(whole.model, None, whole.loss, optimizer=optimizer, micro=pieces)
    assert torch.allclose(result.loss, truth.loss, rtol=1e-6)
    for parameter, tensor in truth.parameters.items():
        ours = result.state[f"parameter.{parameter}"]
        assert torch.allclose(ours, tensor, rtol=1e-6, atol=1e-6), parameter
    for buffer, tensor in truth.buffers.items():
        if buffer in program.buffers:
            assert torch.equal(result.state[f"buffer.{buffer}"], tensor), buffer


def test_names_are_those_of_the_problem() -> None:
    program = capture(models.InPlace(), (models.batch(),))
    fine = program_graph(program)
    cluster = Cluster((Device(name="cpu:0", kind="cpu", memory=1e9),))
    problem = build_problem(
        "p", fine.graph, cluster, {"cpu": [1.0] * fine.graph.num_ops}, phase=fine.phase
    )
    cut = with_program_microbatches(program, 3)
    wanted = with_microbatches(problem, 3).graph.names
    assert [op.name for op in cut.ops] == list(wanted)


def test_random_ops_draw_numbers_of_their_own() -> None:
    cut = with_program_microbatches(capture(models.Dropping(), (models.batch(),)), 2)
    names = [
        op.args[0] for op in cut.ops if getattr(op.target, "__name__", "") == "seeded"
    ]
    assert len(set(names)) == 6
    a, b = run_program(cut).losses
    assert not torch.equal(a, b)


def test_updates_read_all_gradients_and_wait_for_all_readers() -> None:
    cut = with_program_microbatches(capture(models.Tied(), (models.batch(),)), 3)
    update = cut.ops[cut.op_index["update.a.weight"]]
    assert len(update.args[1]) == 3
    assert {name.rpartition("#")[2] for name in update.after} == {"0", "1", "2"}
    seen: set[str] = set()
    for op in cut.ops:
        assert set(op.after) <= seen
        seen.add(op.name)


def test_mistakes_are_refused() -> None:
    program = capture(models.Tied(), (models.batch(),))
    assert with_program_microbatches(program, 1) is program
    with pytest.raises(InputError, match="whole number from 1 to"):
        with_program_microbatches(program, 0)
    cut = with_program_microbatches(program, 2)
    with pytest.raises(InputError, match="already cut into 2"):
        with_program_microbatches(cut, 2)
    with pytest.raises(InputError, match="it takes 2"):
        with_inputs(cut, ((models.batch(),),))
    with pytest.raises(InputError, match=r"input 'input.0#1' has shape \(2, 8\)"):
        with_inputs(cut, ((models.batch(),), (models.batch(2),)))


SIZED = """
import torch
from torch import nn
import torch.nn.functional as F

def build(batch=8):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, (torch.randn(batch, 16), torch.randn(batch, 4)), F.mse_loss

def unsized():
    return build(8)
"""


def test_a_callable_that_is_called_for_a_share_is_captured_without_memory(tmp_path):
    """As on a preset's cluster: the share's fake tensors are of the whole model's mode."""
    (tmp_path / "sized.py").write_text(SIZED)
    options = CaptureOptions(microbatches=4)
    own, other = (
        capture_model(f"{tmp_path}/sized.py:{name}", options=options, fake=True)
        for name in ("build", "unsized")
    )
    assert [op.name for op in own.ops] == [op.name for op in other.ops]
    assert own.batch.count == other.batch.count == 4
