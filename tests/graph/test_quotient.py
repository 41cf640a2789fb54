"""Quotient graphs on hand-made graphs, and against networkx on random ones."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, settings

from gnnplace.graph import ComputationGraph
from gnnplace.graph.quotient import quotient, united
from tests.random_problems import random_problem, seeds


def graph_of(count, tensors):
    return ComputationGraph.from_tensors([f"op{i}" for i in range(count)], tensors)


def listed(found):
    return [
        (int(found.producer[k]), found.size[k], found.consumers(k).tolist())
        for k in range(found.num_tensors)
    ]


def test_the_quotient_has_a_tensor_for_each_that_leaves_its_group():
    tensors = [(0, 8.0, [1, 2, 3]), (1, 0.0, [3]), (0, 0.0, [2]), (1, 4.0, [2])]
    found = quotient(graph_of(4, tensors), np.array([0, 0, 1, 2], np.int32), ["a", "b", "c"])
    # The orders 1 -> 3 and 0 -> 2 are made by the tensor of 8 bytes.
    assert listed(found) == [(0, 8.0, [1, 2]), (0, 4.0, [1])]


def test_values_of_no_bytes_are_kept_where_they_are_said_to_carry_something():
    tensors = [(0, 0.0, [1]), (0, 0.0, [1, 2]), (0, 0.0, [2])]
    order_only = np.array([False, False, True])
    found = quotient(
        graph_of(3, tensors), np.arange(3, dtype=np.int32), ["a", "b", "c"], order_only
    )
    assert listed(found) == [(0, 0.0, [1]), (0, 0.0, [1, 2])]


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_edges_are_those_of_networkx_and_bytes_are_those_that_leave(seed):
    rng = np.random.default_rng(seed)
    graph = random_problem(rng, int(rng.integers(2, 30)), 2).graph
    count = int(rng.integers(1, graph.num_ops + 1))
    group = (graph.position * count // graph.num_ops).astype(np.int32)  # never a cycle
    found = quotient(graph, group, [str(g) for g in range(count)])
    source, end, _ = graph.edges
    expected = {(int(group[a]), int(group[b])) for a, b in zip(source, end, strict=True)}
    source, end, _ = found.edges
    mine = {(int(a), int(b)) for a, b in zip(source, end, strict=True)}
    assert mine == {(a, b) for a, b in expected if a != b}
    leaving = [
        graph.size[k]
        for k in range(graph.num_tensors)
        if any(group[c] != group[graph.producer[k]] for c in graph.consumers(k))
    ]
    assert found.size.sum() == np.sum(leaving)


def test_classes_that_meet_in_a_group_are_one():
    label = np.array([3, 1, 1, 2, -1, 4], np.int32)
    group = np.array([0, 0, 1, 1, 2, 3], np.int32)
    assert united(label, group, 4).tolist() == [1, 1, -1, 4]
    assert united(np.full(2, -1, np.int32), np.array([0, 1], np.int32), 2).tolist() == [-1, -1]


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_classes_are_components_under_their_smallest_label(seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(-1, 6, 20).astype(np.int32)
    group = rng.integers(0, 8, 20).astype(np.int32)
    links = nx.Graph()
    links.add_nodes_from(("group", g) for g in range(8))
    links.add_edges_from(
        (("label", k), ("group", g))
        for k, g in zip(label.tolist(), group.tolist(), strict=True)
        if k >= 0
    )
    expected = []
    for g in range(8):
        component = nx.node_connected_component(links, ("group", g))
        expected.append(min((k for kind, k in component if kind == "label"), default=-1))
    assert united(label, group, 8).tolist() == expected
