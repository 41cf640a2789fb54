from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from tests.random_problems import random_graph, seeds


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
    expected = nx.lexicographical_topological_sort(graph.to_networkx(), key=graph.index.get)
    assert [graph.names[i] for i in graph.topological_order] == list(expected)
    assert graph.position[graph.topological_order].tolist() == list(range(12))


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_tensors_of_an_op_are_in_listing_order(seed):
    graph = random_graph(np.random.default_rng(seed), 10)
    for op in range(10):
        mine = graph.op_tensor[graph.op_tensor_offset[op] : graph.op_tensor_offset[op + 1]]
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
