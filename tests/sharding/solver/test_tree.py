from __future__ import annotations

import numpy as np
import pytest

from gnnplace.sharding.solver.tree import (
    elimination_order,
    elimination_tree,
    make_factors,
)
from tests.sharding.problems import random_problem


@pytest.mark.parametrize("seed", range(10))
def test_every_table_is_used_once_and_steps_have_at_most_two_children(seed):
    factors = make_factors(random_problem(seed, nodes=9, edges=12))
    steps = elimination_tree(factors)
    assert sorted(k for step in steps for k in step.factors) == list(
        range(len(factors.scopes))
    )
    children = sorted(k for step in steps for k in step.children)
    assert children == list(range(len(steps) - 1))
    assert max(len(step.children) for step in steps) <= 2
    assert steps[-1].scope == ()


def work(adjacency, sizes, order):
    graph, total = [set(around) for around in adjacency], 0.0
    for node in order:
        around = graph[node]
        total += sizes[node] * np.prod([sizes[k] for k in around])
        for a in around:
            graph[a] = (graph[a] | around) - {a, node}
        graph[node] = set()
    return total


def test_orders_are_permutations_with_the_work_they_say():
    rng = np.random.default_rng(0)
    for _ in range(30):
        count = int(rng.integers(1, 12))
        adjacency = [set() for _ in range(count)]
        for u, v in rng.integers(0, count, (int(rng.integers(0, 20)), 2)):
            if u != v:
                adjacency[u].add(int(v))
                adjacency[v].add(int(u))
        sizes = [int(k) for k in rng.integers(1, 6, count)]
        order, estimate = elimination_order(adjacency, sizes)
        assert sorted(order) == list(range(count))
        assert estimate == work(adjacency, sizes, order)


def test_a_ring_has_width_two():
    count, size = 30, 10
    adjacency = [{(i - 1) % count, (i + 1) % count} for i in range(count)]
    _, estimate = elimination_order(adjacency, [size] * count)
    assert estimate <= count * size**3
