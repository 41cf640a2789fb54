from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.sharding import best_strategy
from gnnplace.sharding.solver.message_passing import message_bounds
from tests.sharding.problems import every_point, random_problem, random_problems


@settings(deadline=None, max_examples=300)  # The first call compiles.
@given(random_problems(), st.integers(1, 5))
def test_bounds_are_never_above_what_they_bound(problem, sweeps):
    found = message_bounds(problem, sweeps)
    least = [np.full(len(cost), np.inf) for cost in problem.cost]
    for strategy in itertools.product(*(range(len(cost)) for cost in problem.cost)):
        value = problem.value(strategy)
        for node, k in enumerate(strategy):
            least[node][k] = min(least[node][k], value)
    for expected, bound in zip(least, found.node, strict=True):
        assert (bound <= expected + 1e-9).all()
    assert found.bound <= min(cost for cost, _ in every_point(problem)) + 1e-9
    assert found.cost == problem.value(found.configuration)


@pytest.mark.parametrize("seed", range(10))
def test_chains_are_solved_in_one_sweep(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, nodes=2, edges=0)
    sizes = rng.integers(1, 6, 8)
    cost = tuple(rng.normal(size=k) for k in sizes)
    edge = type(random_problem(0).edges[0])
    edges = tuple(
        edge(i, i + 1, rng.normal(size=(sizes[i], sizes[i + 1]))) for i in range(7)
    )
    names = tuple(f"n{i}" for i in range(8))
    problem = type(problem)("chain", 4, names, cost, edges)
    found = message_bounds(problem, 1)
    assert found.cost == pytest.approx(best_strategy(problem).cost)
    assert found.bound == pytest.approx(found.cost)


def test_more_sweeps_do_not_lower_the_bound():
    problem = random_problem(5, nodes=20, edges=40, configurations=6)
    bounds = [message_bounds(problem, sweeps).bound for sweeps in (1, 2, 5, 20)]
    assert bounds == sorted(bounds)
    assert message_bounds(problem, 20).cost <= message_bounds(problem, 1).cost
