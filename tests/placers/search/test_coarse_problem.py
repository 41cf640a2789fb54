from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import gnnplace
from gnnplace.bench.suite import dataset_problem
from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.search.coarse_problem import (
    coarse_problem,
    first_copy,
    narrow_groups,
    narrow_problem,
    parallelism_lost,
)
from gnnplace.problem import BACKWARD
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.train.data.captured import open_shipped_store
from tests.random_problems import random_problem, seeds


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_groups_keep_work_state_phases_and_units(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, 40, 3, constrained=True, microbatches=int(rng.integers(1, 4))
    )
    made = coarse_problem(problem, int(rng.integers(5, 40)))
    if made is None:
        return
    coarse, group = made.problem, made.group
    assert coarse.num_ops < problem.num_ops
    assert coarse.state.sum() == pytest.approx(problem.state.sum())
    for kind, seconds in problem.time.items():
        for g in range(coarse.num_ops):
            assert coarse.time[kind][g] == pytest.approx(seconds[group == g].sum())
    assert (coarse.phase[group] == problem.phase).all()
    assert (coarse.pin[group] == problem.pin).all()
    assert (coarse.microbatch[group] == problem.microbatch).all()
    # A unit is never torn apart: all groups with one of its ops are of one coarse unit.
    for unit in range(problem.num_units):
        assert len(set(coarse.unit_of[group[problem.unit_of == unit]])) == 1


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_every_order_of_groups_is_an_order_of_ops(seed):
    """The groups make no cycle, and any placement of them runs with the ops' order."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 40, 3, microbatches=int(rng.integers(1, 4)))
    made = coarse_problem(problem, 15)
    if made is None:
        return
    coarse = made.problem
    order = made.fine_order(problem, coarse.graph.topological_order)
    position = np.empty(problem.num_ops, dtype=np.int64)
    position[order] = np.arange(problem.num_ops)
    source, target, _ = problem.graph.edges
    assert (position[source] < position[target]).all()
    device = rng.integers(problem.num_devices, size=coarse.num_units)[coarse.unit_of]
    fine = device[made.group].astype(np.int32)
    assert np.isfinite(SearchSpace(problem).simulator.step_time(fine, order))


def test_bytes_between_groups_are_those_of_the_tensors_that_leave():
    problem = contract.training_chain(num_layers=20)
    made = coarse_problem(problem, 15)
    assert made is not None
    graph, group = problem.graph, made.group
    leaving = [
        graph.size[k]
        for k in range(graph.num_tensors)
        if (group[graph.consumers(k)] != group[graph.producer[k]]).any()
    ]
    assert sorted(made.problem.graph.size) == sorted(leaving)


def test_micro_batches_have_equal_groups():
    problem = with_microbatches(contract.training_chain(num_layers=30), 4)
    made = coarse_problem(problem, 40)
    assert made is not None
    cut = problem.phase < 2
    sizes = [
        sorted(np.bincount(made.group[cut & (problem.microbatch == k)])[:-1].tolist())
        for k in range(4)
    ]
    parts = [sorted(s for s in size if s) for size in sizes]
    assert all(len(part) > 1 for part in parts)
    names = problem.graph.names
    for k in range(1, 4):
        for i, name in enumerate(names):
            if name.endswith(f"#{k}"):
                first = names.index(f"{name[:-2]}#0")
                same = np.flatnonzero(made.group == made.group[i])
                copies = {names[j].rpartition("#")[0] for j in same}
                others = np.flatnonzero(made.group == made.group[first])
                assert copies == {names[j].rpartition("#")[0] for j in others}
                break


def test_what_cannot_be_made_smaller_is_left():
    assert coarse_problem(contract.training_chain(), 200) is None
    pinned = contract.training_chain(num_layers=50)
    # Names have no micro-batches: all are of the first.
    lost = replace(pinned, microbatches=2)
    made = coarse_problem(lost, 30)
    assert made is None or made.problem.num_ops < lost.num_ops


@pytest.mark.parametrize("microbatches", [1, 3])
def test_first_copies_of_some_ops_are_those_of_all(microbatches):
    problem = with_microbatches(contract.training_chain(), microbatches)
    everything = first_copy(problem)
    assert everything is not None
    names = [problem.graph.names[i].rpartition("#")[0] for i in range(problem.num_ops)]
    assert [names[i] for i in everything] == names
    assert (problem.microbatch[everything] == 0).all()
    some = np.arange(0, problem.num_ops, 3, dtype=np.int32)
    assert np.array_equal(first_copy(problem, some), everything[some])


def store_problem(name, microbatches, cluster="nvlink-a100-8"):
    graph = open_shipped_store().graph(name)
    where = gnnplace.resolve_cluster(cluster)
    return dataset_problem(graph, where, microbatches=microbatches, groups=None)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_groups_keep_work_state_micro_batches_and_borders(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, 40, 3, constrained=True, microbatches=int(rng.integers(1, 4))
    )
    made = narrow_groups(SearchSpace(problem), int(rng.integers(1, 12)))
    coarse, group = made.problem, made.group
    assert coarse.state.sum() == pytest.approx(problem.state.sum())
    assert (coarse.phase[group] == problem.phase).all()
    assert (coarse.microbatch[group] == problem.microbatch).all()
    for kind, seconds in problem.time.items():
        assert coarse.time[kind] == pytest.approx(np.bincount(group, seconds))
    # What a unit may be on is what its groups' unit may be on: pins and kinds are borders.
    allowed = coarse.unit_allowed[coarse.unit_of[group]]
    assert (allowed == problem.unit_allowed[problem.unit_of]).all()
    for unit in range(problem.num_units):
        assert len(set(coarse.unit_of[group[problem.unit_of == unit]])) == 1
    both = np.concatenate([made.line, made.loose])
    assert sorted(both) == list(range(coarse.num_units))


def test_the_groups_of_a_transformer_are_few_and_lose_no_parallelism():
    problem = store_problem("gpt2-medium", 4, "pcie-v100-4")
    space = SearchSpace(problem)
    made = narrow_problem(space)
    assert made is not None
    assert made.problem.num_ops < problem.num_ops / 6
    assert parallelism_lost(space, made) < 1.25
    assert len(made.loose) == 1  # the embedding, which is the last layer as well
    again = narrow_problem(SearchSpace(problem))
    assert again is not None
    assert (made.group == again.group).all()


def test_the_line_of_rotary_layers_passes_gradients_one_way():
    """Backward ops that take a table of all layers stay with their layer: only neighbours talk."""
    problem = store_problem("llama-medium", 4)
    made = narrow_problem(SearchSpace(problem))
    assert made is not None
    coarse = made.problem
    place = np.empty(coarse.num_units, dtype=int)
    place[made.line] = np.arange(len(made.line))
    source, target, _size = coarse.graph.edges
    at, to = place[coarse.unit_of[source]], place[coarse.unit_of[target]]
    back = (coarse.phase[source] == BACKWARD) & (coarse.phase[target] == BACKWARD)
    assert (to[back] <= at[back]).all()


def test_small_graphs_and_grids_are_left_whole():
    assert narrow_problem(SearchSpace(contract.training_chain(num_layers=60))) is None
    assert narrow_problem(SearchSpace(store_problem("seq2seq-long", 4))) is None


@pytest.mark.parametrize("what", ["pin", "forbid"])
def test_a_pin_in_the_middle_of_a_segment_is_a_border(what):
    problem = contract.training_chain(num_layers=60, num_devices=3)
    pinned = np.full(problem.num_ops, -1, dtype=np.int32)
    unit = SearchSpace(problem).unit_order[30]
    pinned[problem.unit_of == unit] = 2
    barred = np.zeros((problem.num_ops, 3), dtype=bool)
    barred[problem.unit_of == unit, :2] = True
    problem = replace(
        problem, **({"pin": pinned} if what == "pin" else {"forbid": barred})
    )
    made = narrow_groups(SearchSpace(problem), 4)
    mine = np.unique(made.problem.unit_of[made.group[problem.unit_of == unit]])
    assert len(mine) == 1
    assert (
        problem.unit_of[np.isin(made.problem.unit_of[made.group], mine)] == unit
    ).all()
    assert made.problem.unit_allowed[mine[0]].tolist() == [False, False, True]
