from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, settings

from gnnplace.graph import ComputationGraph
from gnnplace.placers import SearchSpace
from gnnplace.simulation.compiled import find_needed_edges, make_lean
from gnnplace.simulation.list_scheduling import time_list_schedule
from tests.random_problems import random_problem, seeds


def test_an_edge_inside_a_unit_is_left_out_where_a_path_says_the_same():
    """a -> b -> c and a -> c: the last is needed only if a and c may be on different devices."""
    graph = ComputationGraph.from_tensors(
        ["a", "b", "c"], [(0, 1.0, [1]), (0, 1.0, [2]), (1, 1.0, [2])]
    )
    assert find_needed_edges(graph, np.array([0, 1, 0], np.int32)).tolist() == [
        True,
        False,
        True,
    ]
    assert find_needed_edges(graph, np.array([0, 1, 2], np.int32)).all()


def test_a_message_for_two_ops_of_a_unit_is_for_the_first_of_them():
    graph = ComputationGraph.from_tensors(
        ["a", "b", "c"], [(0, 1.0, [1, 2]), (1, 1.0, [2])]
    )
    assert find_needed_edges(graph, np.array([0, 1, 1], np.int32)).tolist() == [
        True,
        False,
        True,
    ]
    assert find_needed_edges(graph, np.array([0, 1, 2], np.int32)).all()


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_what_is_left_out_is_what_paths_imply(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 90)), 3)
    graph, unit = problem.graph, rng.integers(0, 4, problem.num_ops)
    paths = nx.transitive_closure_dag(
        nx.DiGraph(list(zip(*graph.edges[:2], strict=True)))
    )
    kept = find_needed_edges(graph, unit.astype(np.int32)).tolist()
    for k, op in enumerate(graph.consumer.tolist()):
        tensor = int(graph.consumption_tensor[k])
        source = int(graph.producer[tensor])
        others = graph.consumers(tensor)
        others = others[unit[others] == unit[op]]
        if unit[op] == unit[source]:
            others = graph.successors(source)
        assert kept[k] == (not any(paths.has_edge(int(other), op) for other in others))


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_schedules_are_the_same(seed):
    rng = np.random.default_rng(seed)
    space = SearchSpace(
        random_problem(rng, 40, 3, microbatches=int(rng.integers(1, 3)))
    )
    n = space.problem.num_ops
    device = space.spread(rng.integers(3, size=space.problem.num_units))
    priority, whole, few = rng.random(n), np.empty(n), np.empty(n)
    order = time_list_schedule(space.compiled, device, priority, whole, np.inf)
    reduced = make_lean(space.problem, space.compiled)
    again = time_list_schedule(reduced, device, priority, few, np.inf)
    assert order.tolist() == again.tolist()
    np.testing.assert_array_equal(whole, few)
