from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from gnnplace.graph import ComputationGraph
from gnnplace.placers import SearchSpace
from gnnplace.search.lean import lean, needed
from gnnplace.simulation.list_scheduling import timed_list_schedule
from tests.random_problems import random_problem, seeds


def test_an_edge_inside_a_unit_is_left_out_where_a_path_says_the_same():
    """a -> b -> c and a -> c: the last is needed only if a and c may be on different devices."""
    graph = ComputationGraph.from_tensors(
        ["a", "b", "c"], [(0, 1.0, [1]), (0, 1.0, [2]), (1, 1.0, [2])]
    )
    assert needed(graph, np.array([0, 1, 0])).tolist() == [True, False, True]
    assert needed(graph, np.array([0, 1, 2])).all()


def test_a_message_for_two_ops_of_a_unit_is_for_the_first_of_them():
    graph = ComputationGraph.from_tensors(["a", "b", "c"], [(0, 1.0, [1, 2]), (1, 1.0, [2])])
    assert needed(graph, np.array([0, 1, 1])).tolist() == [True, False, True]
    assert needed(graph, np.array([0, 1, 2])).all()


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_schedules_are_the_same(seed):
    rng = np.random.default_rng(seed)
    space = SearchSpace(random_problem(rng, 40, 3, microbatches=int(rng.integers(1, 3))))
    n = space.problem.num_ops
    device = space.spread(rng.integers(3, size=space.problem.num_units))
    priority, whole, few = rng.random(n), np.empty(n), np.empty(n)
    order = timed_list_schedule(space.compiled, device, priority, whole, np.inf)
    reduced = lean(space.problem, space.compiled)
    again = timed_list_schedule(reduced, device, priority, few, np.inf)
    assert order.tolist() == again.tolist()
    np.testing.assert_array_equal(whole, few)
