"""Replicas that share gradients: the structure, and real processes against one device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch

import gnnplace
from gnnplace import execution
from gnnplace.errors import InputError
from gnnplace.execution.verification import reference_step
from gnnplace.plans.hybrid.fabric import ClusterCopies
from gnnplace.plans.hybrid.replicas import replicated, replicated_placement, replicated_problem
from gnnplace.simulation import simulate
from gnnplace.tracing import load
from gnnplace.tracing.loading import shares_of
from gnnplace.tracing.microbatching import microbatched, with_inputs
from gnnplace.tracing.program import Program

OPTIONS = gnnplace.CaptureOptions
MLP = "mlp?batch=8&depth=2"


def shares(model: str, count: int) -> Sequence[tuple[torch.Tensor, ...]]:
    return tuple(tuple(x for x in share) for share in shares_of(load(model), count))


@cache
def program_of(model: str, count: int) -> Program:
    """Captured once; tests only look at it."""
    return gnnplace.capture(model, options=OPTIONS(microbatches=count))


@pytest.mark.parametrize(
    ("model", "cut"),
    [(MLP, 2), pytest.param("small_resnet?batch=8", 2, marks=pytest.mark.campaign)],
)
def test_two_groups_of_two_devices_train_like_one_device(model: str, cut: int) -> None:
    """Four processes; gradients and both groups' parameters are bitwise those of accumulation."""
    cluster = gnnplace.resolve_cluster("cpu:4")
    base = program_of(model, 2 * cut)
    group = ClusterCopies(cluster).group(0, 2)
    problem = gnnplace.profile(base, group, options=OPTIONS(microbatches=cut, groups=40))
    placed = gnnplace.place(problem, placer="round-robin")
    assert len(set(placed.placement.device.tolist())) == 2
    whole = replicated_problem(problem, 2, cluster)
    placement = replicated_placement(problem, placed.placement, 2)
    given = tuple(shares(model, 2 * cut))
    program = with_inputs(replicated(base, 2, cut), given)
    run = execution.execute(program, whole, placement, steps=1, warmup=0, mode="emulated")
    one = reference_step(with_inputs(microbatched(base, 2 * cut), given))
    assert run.first is not None
    assert len(run.devices) == 4
    assert run.first.loss == one.loss
    for name, gradient in one.gradients.items():
        assert torch.equal(run.first.gradients[name], gradient)
    for name, parameter in one.parameters.items():
        for g in range(2):
            assert torch.equal(run.first.parameters[f"{name}@{g}"], parameter)
    assert simulate(whole, placement).feasible


def test_updates_read_the_gradients_of_all_groups() -> None:
    """And nothing else crosses groups."""
    program = replicated(program_of(MLP, 4), 2, 2)
    assert program.microbatches == 4
    group = {op.name: _group(op.name) for op in program.ops}
    for op in program.ops:
        made_by = {
            group[program.ops[program.producer[r]].name] for r in op.reads if r in program.producer
        }
        if op.phase == "update":
            assert made_by == {0, 1}
        else:
            assert made_by <= {group[op.name]}
    state = [n for n, entry in program.inputs.items() if entry.kind == "parameter"]
    assert {name.rpartition("@")[2] for name in state} == {"0", "1"}


def _group(name: str) -> int:
    if "@" in name:
        return int(name.rpartition("@")[2])
    return int(name.rpartition("#")[2]) // 2


def test_problems_carry_gradients_both_ways() -> None:
    """A gradient's readers are the updates of both groups; orders stay inside."""
    base = program_of(MLP, 2)
    cluster = gnnplace.resolve_cluster("cpu:4")
    problem = gnnplace.profile(base, ClusterCopies(cluster).group(0, 2), options=OPTIONS())
    whole = replicated_problem(problem, 2, cluster)
    assert whole.num_ops == 2 * problem.num_ops
    assert whole.state.sum() == 2 * problem.state.sum()
    graph = whole.graph
    updates = [i for i, name in enumerate(graph.names) if name.startswith("update")]
    for k in range(graph.num_tensors):
        readers = [int(c) for c in graph.consumers(k) if int(c) in updates]
        groups = {graph.names[c].rpartition("@")[2] for c in readers}
        assert len(groups) in ((0, 2) if graph.size[k] > 0 else (0, 1))


def test_bad_requests_are_refused() -> None:
    """One group, no training, a cluster of another size, no sequences."""
    base = program_of(MLP, 2)
    with pytest.raises(InputError, match="two groups"):
        replicated(base, 1)
    forward = gnnplace.capture(MLP, options=OPTIONS(microbatches=2, forward_only=True))
    with pytest.raises(InputError, match="no gradients"):
        replicated(forward, 2)
    cluster = gnnplace.resolve_cluster("cpu:2")
    problem = gnnplace.profile(base, cluster, options=OPTIONS())
    with pytest.raises(InputError, match="must have 4"):
        replicated_problem(problem, 2, cluster)
    bare = gnnplace.place(problem, placer="single").placement
    with pytest.raises(InputError, match="sequences"):
        replicated_placement(problem, type(bare)(bare.device), 2)
