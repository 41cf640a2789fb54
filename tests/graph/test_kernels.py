from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from gnnplace.graph.kernels import (
    average_finite,
    components,
    flows_between,
    group_entries,
    sum_finite,
    sum_op_flows,
)
from gnnplace.placers import SearchSpace
from gnnplace.problem import FORWARD
from tests.random_problems import random_problem, seeds


@settings(max_examples=50, deadline=None)
@given(key=st.lists(st.integers(0, 9), max_size=60))
def test_entries_are_grouped_as_they_are_listed(key):
    array = np.array(key, np.int32)
    offset, entry = group_entries(array, 11)
    assert entry.tolist() == np.argsort(array, kind="stable").tolist()
    assert np.diff(offset).tolist() == np.bincount(array, minlength=11).tolist()


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 30), seed=seeds, num_edges=st.integers(0, 30))
def test_components_are_those_of_scipy(count, seed, num_edges):
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, count, (2, num_edges)).astype(np.int32)
    links = coo_array((np.ones(num_edges), (source, target)), shape=(count, count))
    expected = connected_components(links, directed=False)[1]
    assert components(source, target, count).tolist() == expected.tolist()


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_flows_are_the_bytes_between_units_both_ways(seed):
    problem = random_problem(np.random.default_rng(seed), 20, 2, constrained=True)
    expected: dict[tuple[int, int], float] = {}
    for a, b, size in zip(*problem.graph.edges, strict=True):
        pair = int(problem.unit_of[a]), int(problem.unit_of[b])
        if pair[0] != pair[1]:
            expected[pair] = expected.get(pair, 0.0) + size
    offset, other, into, out = SearchSpace(problem).unit_flows
    found, came = {}, {}
    for u in range(problem.num_units):
        neighbours = other[offset[u] : offset[u + 1]].tolist()
        assert neighbours == sorted(set(neighbours))
        for k in range(offset[u], offset[u + 1]):
            if out[k] >= 0:
                found[u, int(other[k])] = out[k]
            if into[k] >= 0:
                came[int(other[k]), u] = into[k]
    assert found == expected
    assert came == expected


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_coordinates_follow_the_rule_of_the_module(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 20, 2)
    problem.phase[:] = np.sort(rng.integers(0, 3, 20))[problem.graph.position]
    graph, value = problem.graph, {}
    for op in graph.topological_order.tolist():
        inputs = graph.predecessors(op).tolist()
        forward = [value[i] for i in inputs if problem.phase[i] == FORWARD]
        if problem.phase[op] == FORWARD or not inputs:
            value[op] = float(graph.position[op])
        else:
            value[op] = max(forward) if forward else min(value[i] for i in inputs)
    assert SearchSpace(problem).coordinate.tolist() == [value[op] for op in range(20)]


def test_means_and_sums_leave_out_what_cannot_run():
    rows = np.array([[1.0, 3.0], [np.inf, 2.0], [np.inf, np.inf]])
    assert average_finite(rows).tolist() == [2.0, 2.0, 0.0]
    assert sum_finite(rows).tolist() == [1.0, 5.0]


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_work_is_the_sum_of_a_units_ops_where_it_is_allowed(seed):
    problem = random_problem(np.random.default_rng(seed), 15, 3, constrained=True)
    work = SearchSpace(problem).work
    for u in range(problem.num_units):
        expected = problem.times[problem.unit_of == u].sum(axis=0)
        expected[~problem.unit_allowed[u]] = np.inf
        np.testing.assert_allclose(work[u], expected)


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_flows_of_ops_are_those_between_units_of_one_op(seed):
    graph = random_problem(np.random.default_rng(seed), 20, 2).graph
    arguments = (*graph.edges, graph.num_ops)
    for ours, expected in zip(
        sum_op_flows(*arguments), flows_between(*arguments), strict=True
    ):
        assert ours.tolist() == expected.tolist()
