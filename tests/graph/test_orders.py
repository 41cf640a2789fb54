from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.graph.orders import BACKWARD_ORDERS, FORWARD_ORDERS, ORDERS, traversal
from gnnplace.graph.ranks import upward_rank
from tests.random_problems import random_graph, seeds


def made(name, graph, seed=0):
    rng = np.random.default_rng(5)
    return traversal(name, graph, rng.random(graph.num_ops), rng.random(len(graph.edges[0])), seed)


def position_of(order):
    position = np.empty(len(order), dtype=int)
    position[order] = np.arange(len(order))
    return position


DIAMOND = ComputationGraph.from_tensors(
    ["d", "c", "b", "a"], [(3, 1.0, [2, 1]), (2, 1.0, [0]), (1, 1.0, [0])]
)


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_every_order_is_a_permutation_with_its_direction(seed):
    graph = random_graph(np.random.default_rng(seed), 1 + seed % 30)
    source, target, _ = graph.edges
    for name in ORDERS:
        order = made(name, graph)
        assert order.dtype == np.int32
        assert sorted(order.tolist()) == list(range(graph.num_ops))
        position = position_of(order)
        if name in FORWARD_ORDERS:
            assert (position[source] < position[target]).all()
        if name in BACKWARD_ORDERS:
            assert (position[source] > position[target]).all()


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_depth_first_orders_agree_with_recursion(seed):
    graph = random_graph(np.random.default_rng(seed), 1 + seed % 25)
    pre, post, met = [], [], set()

    def visit(op):
        met.add(op)
        pre.append(op)
        for other in graph.successors(op).tolist():
            if other not in met:
                visit(other)
        post.append(op)

    for op in range(graph.num_ops):
        if len(graph.predecessors(op)) == 0:
            visit(op)
    assert made("depth-first-pre", graph).tolist() == pre
    assert made("depth-first-post", graph).tolist() == post


def test_breadth_first_goes_level_by_level_on_a_tree():
    tree = ComputationGraph.from_tensors(
        list("abcdefg"), [(i, 1.0, [2 * i + 1, 2 * i + 2]) for i in range(3)]
    )
    assert made("breadth-first", tree).tolist() == list(range(7))
    assert made("depth-first-pre", tree).tolist() == [0, 1, 3, 4, 2, 5, 6]


def test_lexicographic_goes_by_name_and_topological_by_listing():
    assert [DIAMOND.names[i] for i in made("lexicographic", DIAMOND)] == ["a", "b", "c", "d"]
    assert [DIAMOND.names[i] for i in made("topological", DIAMOND)] == ["a", "c", "b", "d"]
    assert [DIAMOND.names[i] for i in made("reverse-topological", DIAMOND)] == list("dbca")


def test_upward_rank_falls():
    graph = random_graph(np.random.default_rng(3), 40)
    rng = np.random.default_rng(5)
    rank = upward_rank(graph, rng.random(40), rng.random(len(graph.edges[0])))
    assert (np.diff(rank[made("upward-rank", graph)]) <= 0).all()


def test_random_depends_on_the_seed_alone():
    graph = random_graph(np.random.default_rng(4), 40)
    assert made("random", graph, 1).tolist() == made("random", graph, 1).tolist()
    assert made("random", graph, 1).tolist() != made("random", graph, 2).tolist()


def test_unknown_order_lists_the_known_ones():
    with pytest.raises(InputError, match=r"order 'zigzag': unknown; orders: topological"):
        made("zigzag", DIAMOND)
