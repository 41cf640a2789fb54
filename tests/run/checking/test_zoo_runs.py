"""Captured models, grouped, micro-batched, placed at random: equal to one process, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gnnplace import zoo
from gnnplace.costs.profiling.grouping import group_graph
from gnnplace.costs.profiling.profiler import group_ops
from gnnplace.errors import DeadlockError
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.problem.placement import Placement
from gnnplace.run.checking.verification import reference_step, verify
from gnnplace.run.placed.executor import execute
from gnnplace.run.placed.options import ExecutionOptions
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.microbatching import (
    list_buffer_turns,
    with_program_microbatches,
)
from gnnplace.tracing.program.program import Program
from gnnplace.tracing.program.structure import program_graph
from tests.run.programs import cpu_cluster, random_placement


def grouped(program: Program, num_devices: int, microbatches: int = 1) -> Problem:
    """Coarsened as `profile` does it, with made-up times."""
    group = group_ops(program, 60)
    cost = np.full(len(program.ops), 1e-5)
    coarse = group_graph(program, program_graph(program), group, cost)
    problem = build_problem(
        program.name,
        coarse.graph,
        cpu_cluster(num_devices),
        {"cpu": np.bincount(group, cost, coarse.graph.num_ops)},
        state=coarse.state,
        phase=coarse.phase,
        colocate=coarse.colocate,
        members=coarse.members,
    )
    turns = {(int(group[a]), int(group[b])) for a, b in list_buffer_turns(program)}
    return with_microbatches(problem, microbatches, profiled=True, turns=sorted(turns))


def workload(name: str, microbatches: int, **sizes: int) -> Program:
    load = zoo.build(name, batch=8 // microbatches, **sizes)
    return capture(
        load.model, load.inputs, loss=load.loss, optimizer="adamw", name=name
    )


@pytest.mark.parametrize(
    ("name", "microbatches"),
    [
        *(("two_tower", 2), ("small_resnet", 4)),
        pytest.param("mlp", 1, marks=pytest.mark.campaign),
        pytest.param("small_resnet", 1, marks=pytest.mark.campaign),
        pytest.param("gpt2", 2, marks=pytest.mark.campaign),
    ],
)
def test_a_captured_model_equals_one_process(name, microbatches):
    program = workload(name, microbatches)
    problem = grouped(program, 2, microbatches)
    whole = with_program_microbatches(program, microbatches)
    execution = execute(
        whole,
        problem,
        random_placement(problem, 3),
        ExecutionOptions(steps=1, warmup=0),
    )
    result = verify(whole, execution)
    assert result.bitwise, result.summary()
    assert result.tensors > 10


class Averaging(nn.Module):
    """A running average between two layers; what it is at the end tells the order of the shares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8, momentum=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x))).square().mean()


@pytest.fixture(scope="module")
def averaging():
    torch.manual_seed(0)
    program = capture(Averaging(), torch.randn(4, 8))
    return with_program_microbatches(program, 3), grouped(program, 2, 3), program


@pytest.mark.parametrize("seed", range(4))
def test_buffers_change_in_the_order_of_the_micro_batches_in_any_placement(
    averaging, seed
):
    whole, problem, _ = averaging
    execution = execute(
        whole,
        problem,
        random_placement(problem, seed),
        ExecutionOptions(steps=1, warmup=0),
    )
    result = verify(whole, execution)
    assert result.bitwise, result.summary()


def test_shares_out_of_turn_are_a_deadlock_where_a_buffer_changes_and_there_alone(
    averaging,
):
    """The last share first: nothing but the buffer is against it."""
    whole, problem, program = averaging
    device = np.zeros(problem.num_ops, np.int32)
    backwards = (-np.arange(3)).tolist()
    share = [0 if m < 0 else backwards[m] for m in problem.microbatch.tolist()]
    rank = np.lexsort((problem.graph.position, share, problem.phase == 2)).astype(
        np.int32
    )
    placement = Placement(device, (rank, np.zeros(0, np.int32)))
    with pytest.raises(DeadlockError):
        execute(whole, problem, placement, ExecutionOptions(steps=1))
    with pytest.raises(DeadlockError, match="copy"):
        execute(whole, without_turns(program), placement, ExecutionOptions(steps=1))


def without_turns(program: Program) -> Problem:
    """As problems were cut before: only the program knows of the order."""
    return with_microbatches(grouped(program, 2), 3, profiled=True)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("mlp", {"depth": 1}), ("two_tower", {}), ("gpt2", {"layers": 1})],
)
def test_models_without_such_buffers_have_no_turns(name, sizes):
    assert list_buffer_turns(workload(name, 2, **sizes)) == []


class Noisy(nn.Module):
    """Dropout twice, and one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.layer(self.drop(self.layer(x)))).square().mean()


def test_dropout_draws_the_same_numbers_anywhere_and_others_each_step():
    program = capture(Noisy(), torch.randn(16, 8))
    problem = grouped(program, 2)
    for seed in range(2):
        execution = execute(
            program, problem, random_placement(problem, seed), ExecutionOptions(steps=1)
        )
        assert verify(program, execution).bitwise
    assert reference_step(program).loss != reference_step(program, step=1).loss


def test_inference_brings_its_outputs_back():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(5, 8)
    program = capture(model, x, forward_only=True)
    problem = grouped(program, 2)
    device = np.arange(problem.num_units, dtype=np.int32)[problem.unit_of] % 2
    execution = execute(program, problem, Placement(device), ExecutionOptions(steps=1))
    assert verify(program, execution).bitwise
    assert execution.first is not None
    (output,) = execution.first.outputs.values()
    torch.testing.assert_close(output, model(x).detach())
