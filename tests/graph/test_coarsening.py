"""Coarsening: always acyclic, phases apart, units whole, near the wished number of groups."""

from __future__ import annotations

import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.graph.coarsening import coarsen


def random_graph(n: int, degree: float, seed: int) -> ComputationGraph:
    random = np.random.default_rng(seed)
    tensors = []
    for i in range(1, n):
        sources = random.choice(
            i, size=min(i, 1 + random.poisson(degree)), replace=False
        )
        tensors += [(int(s), 8.0, [i]) for s in sorted(sources)]
    return ComputationGraph.from_tensors([f"op{i}" for i in range(n)], tensors)


def quotient(graph: ComputationGraph, groups: np.ndarray) -> nx.DiGraph:
    view = nx.DiGraph()
    view.add_nodes_from(range(int(groups.max()) + 1))
    source, target, _ = graph.edges
    view.add_edges_from(
        (int(groups[a]), int(groups[b]))
        for a, b in zip(source, target, strict=True)
        if groups[a] != groups[b]
    )
    return view


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 60),
    degree=st.floats(0, 3),
    seed=st.integers(0, 2**16),
    target=st.integers(1, 40),
    classes=st.integers(0, 12),
)
def test_groups_are_acyclic_keep_phases_apart_and_are_numbered_in_order(
    n: int, degree: float, seed: int, target: int, classes: int
) -> None:
    graph = random_graph(n, degree, seed)
    random = np.random.default_rng(seed)
    phase = np.sort(random.integers(0, 3, n)).astype(np.int8)
    unit = [None if classes == 0 else f"u{random.integers(classes)}" for _ in range(n)]
    attach = np.array(
        [
            graph.predecessors(i)[0] if graph.predecessors(i).size else -1
            for i in range(n)
        ],
        dtype=np.int32,
    )
    cost = random.exponential(size=n)
    groups = coarsen(graph, cost, target=target, unit=unit, phase=phase, attach=attach)
    view = quotient(graph, groups)
    assert all(a < b for a, b in view.edges)
    assert sorted(set(groups.tolist())) == list(range(int(groups.max()) + 1))
    for group in range(int(groups.max()) + 1):
        assert len(set(phase[groups == group].tolist())) == 1


def test_a_chain_reaches_the_target_with_even_groups() -> None:
    graph = ComputationGraph.from_tensors(
        [f"op{i}" for i in range(1000)], [(i, 1.0, [i + 1]) for i in range(999)]
    )
    groups = coarsen(graph, np.ones(1000), target=100)
    assert groups.max() + 1 == 100
    assert np.bincount(groups).max() <= 4 * 10


def test_the_grid_of_an_unrolled_recurrent_network_does_not_stall() -> None:
    """A rule that only merges into only neighbours is stuck in the grid's inside."""
    steps, layers = 60, 6
    index = {(s, k): s * layers + k for s in range(steps) for k in range(layers)}
    tensors = [
        (i, 1.0, [index[s + 1, k]]) for (s, k), i in index.items() if s + 1 < steps
    ]
    tensors += [
        (i, 1.0, [index[s, k + 1]]) for (s, k), i in index.items() if k + 1 < layers
    ]
    graph = ComputationGraph.from_tensors(
        [f"op{i}" for i in range(len(index))], tensors
    )
    groups = coarsen(
        graph,
        np.ones(len(index)),
        target=60,
        unit=[f"l{i % layers}" for i in range(len(index))],
    )
    assert groups.max() + 1 <= 60
    assert all(a < b for a, b in quotient(graph, groups).edges)


def test_parallel_branches_are_not_merged_with_each_other() -> None:
    """Two long branches between a fork and a join stay two chains of groups."""
    length = 50
    tensors = [(0, 1.0, [1, 1 + length])]
    for start in (1, 1 + length):
        tensors += [
            (i, 1.0, [i + 1 if i + 1 < start + length else 1 + 2 * length])
            for i in range(start, start + length)
        ]
    graph = ComputationGraph.from_tensors(
        [f"op{i}" for i in range(2 + 2 * length)], tensors
    )
    groups = coarsen(graph, np.ones(graph.num_ops), target=12)
    first = set(groups[1 : 1 + length].tolist())
    assert first.isdisjoint(groups[1 + length : 1 + 2 * length].tolist())


def test_attached_ops_go_with_their_op() -> None:
    graph = ComputationGraph.from_tensors(
        ["a", "view", "b", "c"], [(0, 1.0, [1, 2]), (1, 1.0, [3]), (2, 1.0, [3])]
    )
    attach = np.array([-1, 0, -1, -1], dtype=np.int32)
    groups = coarsen(graph, np.ones(4), target=4, attach=attach)
    assert groups[0] == groups[1]
    assert len(set(groups.tolist())) == 3


def test_same_input_same_groups_and_costs_of_scale_do_not_matter() -> None:
    graph = random_graph(200, 1.0, 3)
    cost = np.random.default_rng(0).exponential(size=200)
    groups = coarsen(graph, cost, target=30)
    assert np.array_equal(groups, coarsen(graph, cost, target=30))
    assert np.array_equal(groups, coarsen(graph, cost * 1024, target=30))


def test_eight_thousand_ops_take_seconds() -> None:
    graph = random_graph(8000, 0.3, 1)
    start = time.process_time()
    coarsen(graph, np.ones(8000), target=200)
    assert time.process_time() - start < 20


def test_wrong_arguments_are_named() -> None:
    graph = random_graph(5, 1.0, 0)
    with pytest.raises(InputError, match="target is 0"):
        coarsen(graph, np.ones(5), target=0)
    with pytest.raises(InputError, match="cost has 4 entries, not 5"):
        coarsen(graph, np.ones(4))
