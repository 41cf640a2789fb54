from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.graph.computation_graph import quotient, unite_groups
from tests.random_problems import random_graph, random_problem, seeds


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_arrays_agree_with_networkx(seed):
    graph = random_graph(np.random.default_rng(seed), 12)
    view = graph.to_networkx()
    assert set(view.nodes) == set(graph.names)
    for i, name in enumerate(graph.names):
        after = {graph.names[k] for k in graph.successors(i)}
        before = {graph.names[k] for k in graph.predecessors(i)}
        assert after == set(view.successors(name))
        assert before == set(view.predecessors(name))
    total = sum(data["bytes"] for _, _, data in view.edges(data=True))
    assert total == graph.size[graph.consumption_tensor].sum()


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_the_topological_order_is_the_lexicographically_first(seed):
    graph = random_graph(np.random.default_rng(seed), 12)
    expected = nx.lexicographical_topological_sort(
        graph.to_networkx(), key=graph.index.get
    )
    assert [graph.names[i] for i in graph.topological_order] == list(expected)
    assert graph.position[graph.topological_order].tolist() == list(range(12))


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_tensors_of_an_op_are_in_listing_order(seed):
    graph = random_graph(np.random.default_rng(seed), 10)
    for op in range(10):
        mine = graph.op_tensor[
            graph.op_tensor_offset[op] : graph.op_tensor_offset[op + 1]
        ]
        assert mine.tolist() == np.flatnonzero(graph.producer == op).tolist()


@pytest.mark.parametrize(
    ("names", "tensors", "message"),
    [
        (["a", "a"], [], r"ops\[1\].name: 'a' is repeated"),
        (["a", "b"], [(0, 1.0, [1]), (1, 1.0, [0])], "a cycle: 'a' -> 'b' -> 'a'"),
        (["a"], [(0, 1.0, [0])], "a cycle: 'a' -> 'a'"),
        (["a", "b"], [(0, 1.0, [1, 1])], r"tensors\[0\].consumers: 'b' is repeated"),
        (["a", "b"], [(0, -1.0, [1])], r"tensors\[0\].bytes"),
        (["a", "b"], [(0, float("nan"), [1])], r"tensors\[0\].bytes"),
        (["a", "b"], [(2, 1.0, [1])], "producer index"),
    ],
)
def test_faults_are_named(names, tensors, message):
    with pytest.raises(InputError, match=message):
        ComputationGraph.from_tensors(names, tensors)


def test_arrays_are_frozen():
    graph = ComputationGraph.from_tensors(["a", "b"], [(0, 1.0, [1])])
    with pytest.raises(ValueError, match="read-only"):
        graph.size[0] = 2.0


def graph_of(count, tensors):
    return ComputationGraph.from_tensors([f"op{i}" for i in range(count)], tensors)


def listed(found):
    return [
        (int(found.producer[k]), found.size[k], found.consumers(k).tolist())
        for k in range(found.num_tensors)
    ]


def test_the_quotient_has_a_tensor_for_each_that_leaves_its_group():
    tensors = [(0, 8.0, [1, 2, 3]), (1, 0.0, [3]), (0, 0.0, [2]), (1, 4.0, [2])]
    found = quotient(
        graph_of(4, tensors), np.array([0, 0, 1, 2], np.int32), ["a", "b", "c"]
    )
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
    expected = {
        (int(group[a]), int(group[b])) for a, b in zip(source, end, strict=True)
    }
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
    assert unite_groups(label, group, 4).tolist() == [1, 1, -1, 4]
    assert unite_groups(
        np.full(2, -1, np.int32), np.array([0, 1], np.int32), 2
    ).tolist() == [
        -1,
        -1,
    ]


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
        expected.append(
            min((k for kind, k in component if kind == "label"), default=-1)
        )
    assert unite_groups(label, group, 8).tolist() == expected
