from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import gnnplace
from gnnplace.bench.suite import dataset_problem
from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.search.narrow_problem import narrow_groups, narrow_problem, parallelism_lost
from gnnplace.problem import BACKWARD
from gnnplace.train.data.captured import shipped_store
from tests.random_problems import random_problem, seeds


def store_problem(name, microbatches, cluster="nvlink-a100-8"):
    graph = shipped_store().graph(name)
    where = gnnplace.resolve_cluster(cluster)
    return dataset_problem(graph, where, microbatches=microbatches, groups=None)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_groups_keep_work_state_micro_batches_and_borders(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 40, 3, constrained=True, microbatches=int(rng.integers(1, 4)))
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
    problem = replace(problem, **({"pin": pinned} if what == "pin" else {"forbid": barred}))
    made = narrow_groups(SearchSpace(problem), 4)
    mine = np.unique(made.problem.unit_of[made.group[problem.unit_of == unit]])
    assert len(mine) == 1
    assert (problem.unit_of[np.isin(made.problem.unit_of[made.group], mine)] == unit).all()
    assert made.problem.unit_allowed[mine[0]].tolist() == [False, False, True]
