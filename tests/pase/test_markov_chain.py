from __future__ import annotations

import pytest

from benchmarks.pase.markov_chain import random_search
from gnnplace.sharding import best_strategy
from tests.sharding.problems import random_problem


def test_the_same_seed_gives_the_same_strategy():
    problem = random_problem(1, nodes=12, edges=20, configurations=8)
    start = (0,) * 12
    found = random_search(problem, start, seed=3, proposals=500)
    assert found == random_search(problem, start, seed=3, proposals=500)
    assert problem.value(found) < problem.value(start)


@pytest.mark.parametrize("seed", range(5))
def test_it_comes_near_small_optima_and_not_below(seed):
    problem = random_problem(seed, nodes=4, edges=5, configurations=3)
    found = random_search(problem, (0,) * 4, seed=seed, proposals=20_000)
    best = best_strategy(problem).cost
    assert best * (1 - 1e-12) <= problem.value(found) <= 1.1 * best


def test_no_seconds_no_proposals():
    problem = random_problem(1, nodes=4, edges=4)
    assert (
        random_search(problem, (0,) * 4, seed=0, proposals=100, seconds=0.0) == (0,) * 4
    )
