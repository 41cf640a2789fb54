from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.sharding import Edge, ShardingProblem, best_strategy
from gnnplace.sharding.solver import elimination
from gnnplace.sharding.solver.elimination import min_plus
from tests.sharding.problems import (
    clique,
    every_point,
    random_problem,
    random_problems,
)


@settings(deadline=None, max_examples=200)  # The first call compiles.
@given(random_problems())
def test_equals_brute_force(problem):
    result = best_strategy(problem)
    best = min(cost for cost, _ in every_point(problem))
    assert result.cost == pytest.approx(best, rel=1e-12)
    assert result.cost == problem.value(result.configuration)
    assert result.exact
    assert result.memory is None


@pytest.mark.parametrize("size", [4, 5])
def test_cliques_equal_brute_force(size):
    problem = clique(size, 5)
    best = min(cost for cost, _ in every_point(problem))
    assert best_strategy(problem).cost == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_sums_in_chunks_are_the_same(monkeypatch, chunk):
    problem = clique(4, 5, seed=2)
    whole = best_strategy(problem)
    monkeypatch.setattr(elimination, "CHUNK", chunk)
    assert best_strategy(problem).configuration == whole.configuration


@pytest.mark.parametrize("seed", range(20))
def test_larger_problems_are_never_above_random_strategies_or_improved_by_one_change(
    seed,
):
    problem = random_problem(seed, nodes=25, edges=35, configurations=6)
    found = best_strategy(problem)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        other = tuple(int(rng.integers(len(cost))) for cost in problem.cost)
        assert problem.value(other) >= found.cost - 1e-9
    for node, cost in enumerate(problem.cost):
        for k in range(len(cost)):
            changed = (*found.configuration[:node], k, *found.configuration[node + 1 :])
            assert problem.value(changed) >= found.cost - 1e-9


def test_node_order_and_edge_direction_do_not_matter():
    problem = random_problem(3, nodes=6, edges=9)
    last = len(problem.names) - 1
    turned = ShardingProblem(
        "turned",
        4,
        problem.names[::-1],
        problem.cost[::-1],
        tuple(Edge(last - e.v, last - e.u, e.cost.T) for e in problem.edges),
    )
    assert best_strategy(turned).cost == pytest.approx(
        best_strategy(problem).cost, rel=1e-12
    )


def test_negative_costs_are_costs():
    edge = Edge(0, 1, np.array([[0.0, -5.0], [1.0, 2.0]]))
    problem = ShardingProblem(
        "n", 2, ("a", "b"), (np.array([1.0, 0.0]), np.array([0.0, 3.0])), (edge,)
    )
    assert best_strategy(problem).configuration == (0, 1)
    assert best_strategy(problem).cost == -1.0


def test_equal_parts_are_computed_once(monkeypatch):
    made = []
    product = elimination.min_plus
    monkeypatch.setattr(
        elimination, "min_plus", lambda a, b: made.append(a.shape) or product(a, b)
    )
    layer, pair = (
        np.random.default_rng(0).random(9),
        np.random.default_rng(1).random((9, 9)),
    )
    count = 20  # A ladder: two equal chains with equal rungs.
    edges = [
        Edge(2 * i + s, 2 * i + 2 + s, pair) for i in range(count - 1) for s in (0, 1)
    ]
    edges += [Edge(2 * i, 2 * i + 1, pair) for i in range(count)]
    names = tuple(f"n{i}" for i in range(2 * count))
    problem = ShardingProblem("ladder", 4, names, (layer,) * (2 * count), tuple(edges))
    repeated = best_strategy(problem)
    few, made[:] = len(made), []
    own = tuple(cost.copy() for cost in problem.cost)
    copies = replace(
        problem, cost=own, edges=tuple(replace(e, cost=e.cost.copy()) for e in edges)
    )
    assert best_strategy(copies).configuration == repeated.configuration
    assert len(made) >= few


def test_configurations_without_a_difference_to_neighbours_are_one():
    rng = np.random.default_rng(0)
    of = rng.integers(0, 3, 12)
    edge = Edge(0, 1, rng.random((3, 5))[of])
    problem = ShardingProblem(
        "c", 4, ("a", "b"), (rng.random(12), rng.random(5)), (edge,)
    )
    assert best_strategy(problem).cost == min(cost for cost, _ in every_point(problem))


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [(1, 1, 1), (3, 5, 7), (2, 4, 513), (40, 31, 1), (1, 130, 600)],
)
def test_equals_numpy(rows, inner, columns):
    rng = np.random.default_rng(rows)
    a, b = rng.normal(size=(rows, inner)), rng.normal(size=(inner, columns))
    expected = (a[:, :, None] + b[None]).min(axis=1)
    np.testing.assert_array_equal(min_plus(a, b), expected)
