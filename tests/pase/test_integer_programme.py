from __future__ import annotations

import pytest

from benchmarks.pase import integer_programme
from benchmarks.pase.costs import sharding_problem
from benchmarks.pase.integer_programme import TooManyVariablesError, solve_programme
from benchmarks.pase.networks.registry import build_network
from gnnplace.sharding import best_strategy
from tests.sharding.problems import every_point, random_problem


@pytest.mark.parametrize("seed", range(25))
def test_equals_brute_force(seed):
    problem = random_problem(seed, nodes=1 + seed % 6, edges=7)
    found = solve_programme(problem, 20.0)
    assert found.exact
    assert found.cost == pytest.approx(
        min(cost for cost, _ in every_point(problem)), abs=1e-6
    )


@pytest.mark.parametrize(
    ("name", "devices"), [("alexnet", 4), ("rnnlm", 8), ("gnmt", 4)]
)
def test_networks_have_the_same_optimum(name, devices):
    problem = sharding_problem(build_network(name), devices)
    found = solve_programme(problem, 60.0)
    assert found.exact
    assert found.cost == pytest.approx(best_strategy(problem).cost, rel=1e-6)


def test_too_many_variables_are_refused(monkeypatch):
    monkeypatch.setattr(integer_programme, "MOST_VARIABLES", 10)
    with pytest.raises(TooManyVariablesError, match="more than 10"):
        solve_programme(random_problem(1), 1.0)
