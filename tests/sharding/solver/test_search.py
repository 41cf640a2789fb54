from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.sharding import Edge, ShardingProblem, best_strategy, read_sharding
from gnnplace.sharding.solver import search
from gnnplace.sharding.solver.elimination import TooLargeError
from tests.sharding.problems import (
    clique,
    every_point,
    published,
    random_problem,
    random_problems,
)

OPTIMA = {
    "alexnet_p8": 97098296512,
    "rnnlm_p16": 2476066881536,
    "inception3_p8": 782140602432,
    "transformer_p8": 1421082828800,
}


@settings(deadline=None, max_examples=200)
@given(random_problems())
def test_what_bounds_discard_is_in_no_best_strategy(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SMALL", 0)
        result = best_strategy(problem)
    best = min(cost for cost, _ in every_point(problem))
    assert result.cost == pytest.approx(best, rel=1e-12)
    assert result.cost == problem.value(result.configuration)


@pytest.mark.parametrize("name", OPTIMA)
def test_published_optima(name):
    assert best_strategy(read_sharding(published(name))).cost == pytest.approx(
        OPTIMA[name]
    )


@pytest.mark.parametrize("seed", range(5))
def test_beyond_the_memory_limit_the_answer_has_a_gap_that_holds(seed, monkeypatch):
    problem = clique(7, 5, seed)
    best = best_strategy(problem).cost
    monkeypatch.setattr(search, "MEMORY_LIMIT", 100.0)
    answer = best_strategy(problem, bounded=True)
    assert answer.bound <= best * (1 + 1e-12)
    assert best <= answer.cost * (1 + 1e-12)
    assert answer.cost == problem.value(answer.configuration)
    assert answer.gap == pytest.approx((answer.cost - answer.bound) / answer.cost)
    assert answer.exact == (answer.gap < 1e-9)


def test_a_bound_that_meets_the_strategy_is_a_proof(monkeypatch):
    problem = random_problem(3, nodes=6, edges=5, configurations=4)
    best = best_strategy(problem).cost
    monkeypatch.setattr(search, "MEMORY_LIMIT", 1.0)
    answer = best_strategy(problem, bounded=True)
    assert answer.cost == pytest.approx(best)
    assert answer.gap == pytest.approx(0, abs=1e-9)


def test_a_table_above_the_limit_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(search, "MEMORY_LIMIT", 1000)
    with pytest.raises(TooLargeError, match=r"limit of 1e\+03") as caught:
        best_strategy(clique(6, 8))
    assert "\n" not in str(caught.value)


def symmetric(seed, length=8):
    """A ring in which two ways cost the same and a mixture of them more: bounds tell neither."""
    rng = np.random.default_rng(seed)
    half = [rng.random((3, 3)) for _ in range(length)]
    tables = [np.block([[t, t + 2.0], [t + 2.0, t]]) for t in half]
    costs = [np.tile(rng.random(3), 2) for _ in range(length)]
    edges = [Edge(i, (i + 1) % length, tables[i]) for i in range(length)]
    edges += [
        Edge(i, (i + length // 2) % length, tables[i]) for i in range(length // 2)
    ]
    names = tuple(f"n{i}" for i in range(length))
    return ShardingProblem("symmetric", 4, names, tuple(costs), tuple(edges))


@pytest.mark.parametrize("seed", range(8))
def test_of_strategies_that_cost_the_same_one_is_found(monkeypatch, seed):
    problem = symmetric(seed)
    monkeypatch.setattr(search, "SMALL", 1e18)
    best = best_strategy(problem)
    monkeypatch.setattr(search, "FEW", 0)
    monkeypatch.setattr(search, "LARGE", 0)
    bounds = search._discard(problem, 0)[1]
    assert bounds.cost >= best.cost * (1 - 1e-12)
    assert bounds.bound <= best.cost * (1 + 1e-12)
    assert best_strategy(problem).cost == pytest.approx(best.cost, rel=1e-12)
    monkeypatch.setattr(search, "FEW", 1e18)
    polished = search._better(problem, search.message_bounds(problem, 4))
    assert polished.cost <= search.message_bounds(problem, 4).cost
    assert polished.cost == problem.value(polished.configuration)
