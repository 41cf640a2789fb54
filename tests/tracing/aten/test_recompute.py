"""Checkpointed regions: what is computed again, when, with which numbers, and what it saves."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import InfeasibleError
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.microbatching import with_program_microbatches
from gnnplace.tracing.program.operations import seeded
from gnnplace.tracing.program.program import Program
from tests.tracing.oracle import eager
from tests.tracing.straight_run import run_program

WIDTH = 64
SHORT = 1e7
"""Bytes; activations of a block are 3.4 MB, parameters and gradients 1.6 MB."""


class Deep(nn.Module):
    """Residual blocks, each checkpointed, or none."""

    def __init__(
        self, reentrant: bool | None, drop: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 8 * WIDTH),
                nn.ReLU(),
                nn.Linear(8 * WIDTH, WIDTH),
                nn.Dropout(drop),
            )
            for _ in range(6)
        )
        self.options = (
            None if reentrant is None else {"use_reentrant": reentrant, **options}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + (
                block(x)
                if self.options is None
                else checkpoint(block, x, **self.options)
            )
        return x


def inputs(batch: int = 512) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(1)),)


@cache
def captured(reentrant: bool | None, **options: Any) -> Program:
    """Captured once; tests only look at it."""
    return capture(Deep(reentrant, **options), inputs())


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_are_ops_of_the_backward_phase(reentrant: bool) -> None:
    plain, program = captured(None), captured(reentrant)
    ran = [op for op in program.ops if op.phase == "backward" and "relu" in op.name]
    assert [op.module for op in ran] == [f"blocks.{k}.1" for k in reversed(range(6))]
    assert not [op for op in plain.ops if op.phase == "backward" and "relu" in op.name]
    forward = [
        [op.name for op in p.ops if op.phase == "forward"] for p in (plain, program)
    ]
    assert forward[0] == forward[1]


def test_a_second_run_waits_for_the_gradient_that_asks_for_it() -> None:
    program = captured(False)
    begun = [op for op in program.ops if op.after and op.phase == "backward"]
    assert [op.module for op in begun] == [f"blocks.{k}.0" for k in reversed(range(6))]
    late = [op for op in program.ops if op.phase == "backward"]
    for op in begun:
        (name,) = op.after
        block = (op.module or "").rpartition(".")[0]
        own = [
            o.name for o in late if (o.module or "").startswith(block) and not o.view
        ]
        assert name in [o.name for o in late]
        assert program.op_index[name] < min(program.op_index[o] for o in own)


@pytest.mark.parametrize("preserve", [True, False])
def test_a_second_run_draws_the_numbers_of_the_first(preserve: bool) -> None:
    program = captured(False, drop=0.5, preserve_rng_state=preserve)
    names = [op.args[0] for op in program.ops if op.target is seeded]
    first, second = names[:6], names[6:]
    assert len(set(first)) == 6
    assert second == first[::-1] if preserve else set(second).isdisjoint(first)
    cut = with_program_microbatches(program, 2)
    drawn = {op.name: op.args[0] for op in cut.ops if op.target is seeded}
    assert len(set(drawn.values())) == (12 if preserve else 24)
    assert all(
        seed.partition("#")[2] == name.partition("#")[2] for name, seed in drawn.items()
    )


def test_micro_batches_of_a_checkpointed_model_equal_accumulation() -> None:
    model, (x,) = Deep(True), inputs(8)
    halves = [(x[:4],), (x[4:],)]
    mean = lambda output: output.pow(2).mean()  # noqa: E731
    truth = eager(model, halves[0], mean, micro=halves)
    program = with_program_microbatches(capture(model, halves[0], loss=mean), 2)
    program.initial.update({"input.0#0": x[:4], "input.0#1": x[4:]})
    result = run_program(program)
    for name, tensor in truth.parameters.items():
        torch.testing.assert_close(
            result.state[f"parameter.{name}"], tensor, rtol=1e-5, atol=1e-7
        )


def peak(program: Program, memory: float) -> float:
    """Peak bytes of the `best` placement on one device of so much memory."""
    cluster = Cluster((Device(name="a100:0", kind="a100", memory=memory),))
    problem = profile(program, cluster, groups=1000)
    return float(gnnplace.place(problem, placer="best", budget=0.0).peak_memory.max())


def test_predicted_memory_follows() -> None:
    """Where memory is short, checkpointed regions are run when their gradient is there."""
    assert peak(captured(False), 1e9) > SHORT > peak(captured(False), SHORT)
    with pytest.raises(InfeasibleError):
        peak(captured(None), SHORT)
