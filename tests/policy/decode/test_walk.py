from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from gnnplace.graph.orders import COORDINATE
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.problem import problem_from_data
from gnnplace.simulation.transfer import LATENCY
from gnnplace.train.data.random_families import RandomDraws
from gnnplace.train.data.random_families import random_problem as family_problem
from tests.random_problems import random_problem, seeds


def walk_graph(seed, microbatches=1):
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 25)), int(rng.integers(1, 5))
    problem = random_problem(rng, *shape, constrained=True, microbatches=microbatches)
    return WalkGraph(SearchSpace(problem))


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_every_unit_is_visited_and_only_the_first_micro_batch(seed):
    graph = walk_graph(seed, microbatches=1 + seed % 3)
    problem = graph.problem
    assert set(graph.unit.tolist()) == set(range(problem.num_units))
    if problem.microbatches > 1:
        assert (problem.microbatch[graph.ops] == 0).all()
    assert [graph.graph.names[k] for k in range(len(graph.ops))] == [
        problem.graph.names[i] for i in graph.ops
    ]


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_the_two_directions_are_mirrors(seed):
    graph = walk_graph(seed)
    there, back = graph.forward, graph.backward

    def pairs(walk):
        mine = np.repeat(np.arange(len(walk.unit)), np.diff(walk.before_offset))
        return mine, walk.before_op, walk.before_tensor

    mine, other, tensor = pairs(there)
    assert sorted(zip(mine, other, tensor, strict=True)) == sorted(
        (b, a, k) for a, b, k in zip(*pairs(back), strict=True)
    )
    np.testing.assert_array_equal(there.links.each(LATENCY), back.links.each(LATENCY).T)
    np.testing.assert_array_equal(there.flow_in, back.flow_out)


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_flows_add_up_to_the_bytes_between_units(seed):
    graph = walk_graph(seed)
    walk, problem = graph.forward, graph.problem
    source, target, size = problem.graph.edges
    apart = problem.unit_of[source] != problem.unit_of[target]
    assert np.maximum(walk.flow_in, 0).sum() == size[apart].sum()
    assert np.maximum(walk.flow_out, 0).sum() == size[apart].sum()


def test_coordinates_keep_a_layers_ops_together_and_layers_in_order():
    seed = next(
        s
        for s in range(50)
        if (family_problem("chain", s, RandomDraws(microbatches=(1,))).phase > 0).any()
    )
    problem = family_problem("chain", seed, RandomDraws(microbatches=(1,)))
    graph = WalkGraph(SearchSpace(problem))
    visited = graph.unit[graph.order(COORDINATE)]
    starts = np.flatnonzero(np.diff(visited, prepend=-1))
    assert len(starts) == problem.num_units
    assert (np.diff(graph.unit_coordinate[visited]) >= 0).all()
    assert (np.diff(graph.place[graph.unit_order]) > 0).all()


def test_bytes_at_the_peak_of_a_step_with_a_long_lived_tensor():
    """``a`` makes 8 bytes that the backward pass needs and 1 that ``b`` takes; ``b`` makes 2."""
    ops = [
        {"name": name, "time": {"cpu": 1.0}, "phase": phase}
        for name, phase in (("a", "forward"), ("b", "forward"), ("c", "backward"))
    ]
    tensors = [
        {"producer": "a", "bytes": 8, "consumers": ["c"]},
        {"producer": "a", "bytes": 1, "consumers": ["b"]},
        {"producer": "b", "bytes": 2, "consumers": ["c"]},
    ]
    document = {
        "format": "gnnplace-problem",
        "version": 1,
        "name": "peak",
        "devices": [{"name": "cpu:0", "kind": "cpu", "memory": 5.0}],
        "links": [],
        "ops": ops,
        "tensors": tensors,
    }
    walk = WalkGraph(SearchSpace(problem_from_data(document))).forward
    # Bytes alive while a, b and c run: 9, 11, 10; the last two are near the peak.
    np.testing.assert_allclose(walk.unit_peak, [8 + 1 / 2, 2, 0])
