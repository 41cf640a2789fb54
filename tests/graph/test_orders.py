from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.graph.orders import (
    FIXED_ORDERS,
    ORDERS,
    Direction,
    check_order,
    direction,
    downward_rank,
    levels,
    levels_from_sinks,
    traversal,
    upward_rank,
)
from tests.random_problems import random_graph, seeds

# The example of Topcuoglu et al. (2002), figure 2 and table 2: edges of the task graph.
EDGES = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
    (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip
COSTS = [
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
    (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16),
]  # fmt: skip
PUBLISHED = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]


def test_upward_rank_of_the_published_example():
    tensors = [(a - 1, float(c), [b - 1]) for (a, b), c in EDGES.items()]
    graph = ComputationGraph.from_tensors([str(i + 1) for i in range(10)], tensors)
    rank = upward_rank(graph, np.mean(COSTS, axis=1), graph.edges[2])
    np.testing.assert_allclose(rank, PUBLISHED, atol=5e-4)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_ranks_are_longest_paths(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 9)
    cost, edge_cost = rng.random(9), rng.random(len(graph.edges[0]))
    view = nx.DiGraph()
    view.add_nodes_from(range(9))
    for a, b, w in zip(graph.edges[0], graph.edges[1], edge_cost, strict=True):
        view.add_edge(int(a), int(b), weight=float(w) + cost[a])
    up, down = (
        upward_rank(graph, cost, edge_cost),
        downward_rank(graph, cost, edge_cost),
    )
    longest = nx.dag_longest_path_length(view) if view.edges else 0.0
    ends = [op for op in view if view.out_degree(op) == 0]
    assert max(down[op] for op in range(9)) >= longest - 1e-9
    assert np.isclose(max(up), max(down[op] + cost[op] for op in ends))
    depth = levels(graph)
    assert all(depth[b] > depth[a] for a, b in view.edges)
    height = levels_from_sinks(graph)
    for op in range(9):
        after = graph.successors(op)
        assert height[op] == (height[after].max() + 1 if len(after) else 0)


def made(name, graph, seed=0):
    rng = np.random.default_rng(5)
    return traversal(
        name, graph, rng.random(graph.num_ops), rng.random(len(graph.edges[0])), seed
    )


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
    for name in FIXED_ORDERS:
        order = made(name, graph)
        assert order.dtype == np.int32
        assert sorted(order.tolist()) == list(range(graph.num_ops))
        position = position_of(order)
        if ORDERS[name].direction == Direction.PRODUCERS:
            assert (position[source] < position[target]).all()
        if ORDERS[name].direction == Direction.CONSUMERS:
            assert (position[source] > position[target]).all()


def test_a_direction_is_read_off():
    """DIAMOND is numbered from its end."""
    assert direction(DIAMOND, np.array([3, 1, 2, 0])) == Direction.PRODUCERS
    assert direction(DIAMOND, np.array([0, 2, 1, 3])) == Direction.CONSUMERS
    assert direction(DIAMOND, np.array([1, 3, 2, 0])) == Direction.NEITHER


MINE = """
import numpy as np
def last_first(graph, cost, edge_cost, seed):
    return np.arange(graph.num_ops)
def short(graph, cost, edge_cost, seed):
    return [0, 1]
def twice(graph, cost, edge_cost, seed):
    return np.zeros(graph.num_ops, int)
def fails(graph, cost, edge_cost, seed):
    return cost["nothing"]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "sideways",
            "'sideways': unknown; orders: auto, topological, .*, or module:function",
        ),
        (
            "in-time",
            "'in-time': only the placer learned can use it, which picks the next op",
        ),
        ("learned-order", "only the placer gnn can use it"),
        ("nowhere:order", "cannot import 'nowhere'"),
        ("mine_orders:missing", "no callable 'missing'"),
        ("mine_orders:short", "no permutation of the graph's 4 ops"),
        ("mine_orders:twice", "no permutation"),
        ("mine_orders:fails", "it failed: IndexError"),
    ],
)
def test_what_is_wrong_with_an_order_is_one_line(tmp_path, monkeypatch, name, said):
    (tmp_path / "mine_orders.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_orders", raising=False)

    def used():
        check_order(name, "auto")
        made(name, DIAMOND)

    with pytest.raises(InputError, match=said):
        used()
    assert made("mine_orders:last_first", DIAMOND).tolist() == [0, 1, 2, 3]


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
    assert [DIAMOND.names[i] for i in made("lexicographic", DIAMOND)] == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert [DIAMOND.names[i] for i in made("topological", DIAMOND)] == [
        "a",
        "c",
        "b",
        "d",
    ]
    assert [DIAMOND.names[i] for i in made("reverse-topological", DIAMOND)] == list(
        "dbca"
    )


def as_networkx(graph):
    """Return the graph as networkx has it: nodes by name, edges as the graph lists them."""
    view = nx.DiGraph()
    view.add_nodes_from(graph.names)
    for source, target, _ in zip(*graph.edges, strict=True):
        view.add_edge(graph.names[source], graph.names[target])
    return view


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_the_orders_of_wang_et_al_are_what_networkx_gives(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 1 + seed % 30)
    names = [f"op{number}" for number in rng.permutation(graph.num_ops)]
    graph = dataclasses.replace(graph, names=tuple(names))
    view = as_networkx(graph)
    assert [graph.names[i] for i in made("alpha", graph)] == sorted(view.nodes)
    # Every source in turn; an op counts where it is met first.
    met: dict[str, None] = {}
    for source in sorted(node for node, inputs in view.in_degree() if inputs == 0):
        for node in (source, *(target for _, target in nx.bfs_edges(view, source))):
            met[node] = None
    assert [graph.names[i] for i in made("breadth-first-sources", graph)] == list(met)


def test_a_breadth_first_search_meets_an_op_before_its_other_producer():
    graph = ComputationGraph.from_tensors(
        ["late", "early", "sum"], [(0, 1.0, [2]), (1, 1.0, [2])]
    )
    assert [graph.names[i] for i in made("breadth-first-sources", graph)] == [
        "early",
        "sum",
        "late",
    ]
    assert [graph.names[i] for i in made("breadth-first", graph)] == [
        "late",
        "early",
        "sum",
    ]


def test_ranks_rise_or_fall():
    graph = random_graph(np.random.default_rng(3), 40)
    rng = np.random.default_rng(5)
    cost, edge_cost = rng.random(40), rng.random(len(graph.edges[0]))
    up, down = (
        upward_rank(graph, cost, edge_cost),
        downward_rank(graph, cost, edge_cost),
    )
    assert (np.diff(up[made("upward-rank", graph)]) <= 0).all()
    assert (np.diff(down[made("downward-rank", graph)]) >= 0).all()
    assert (np.diff((down + cost)[made("reverse-upward-rank", graph)]) <= 0).all()


@pytest.mark.parametrize(
    "name", ["upward-rank", "downward-rank", "reverse-upward-rank", "depth-first-rank"]
)
def test_orders_by_rank_do_not_depend_on_the_listing(name):
    rng = np.random.default_rng(7)
    graph = random_graph(rng, 40)
    cost, costs_of = rng.random(40), {}
    for source, target, _ in zip(*graph.edges, strict=True):
        costs_of[graph.names[source], graph.names[target]] = rng.random()
    listing = rng.permutation(40)
    place = np.argsort(listing)
    other = ComputationGraph.from_tensors(
        [graph.names[i] for i in listing],
        [
            (int(place[graph.producer[k]]), 1.0, place[graph.consumers(k)].tolist())
            for k in range(graph.num_tensors)
        ],
    )
    orders = []
    for g, costs in ((graph, cost), (other, cost[listing])):
        names = zip(*g.edges[:2], strict=True)
        edge_cost = np.array([costs_of[g.names[a], g.names[b]] for a, b in names])
        orders.append([g.names[i] for i in traversal(name, g, costs, edge_cost, 0)])
    assert orders[0] == orders[1]


def test_random_depends_on_the_seed_alone():
    graph = random_graph(np.random.default_rng(4), 40)
    assert made("random", graph, 1).tolist() == made("random", graph, 1).tolist()
    assert made("random", graph, 1).tolist() != made("random", graph, 2).tolist()


def test_unknown_order_lists_the_known_ones():
    with pytest.raises(
        InputError, match=r"order 'zigzag': unknown; orders: topological"
    ):
        made("zigzag", DIAMOND)


def test_the_table_of_the_docs_is_that_of_the_code():
    text = (Path(__file__).parents[2] / "docs/orders.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    told = {
        row[0].strip("`"): tuple(row[1:3])
        for row in rows
        if row[0].strip("`") in ORDERS
    }
    assert told == {
        name: (row.source, str(row.direction)) for name, row in ORDERS.items()
    }
