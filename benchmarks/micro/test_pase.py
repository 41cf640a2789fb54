"""Elimination of PaSE's problems: against variable elimination in NumPy, and of large tables."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.micro.references import against, eliminate
from benchmarks.pase.costs import Machine, sharding_problem
from benchmarks.pase.networks.registry import build_network
from gnnplace.sharding import best_strategy, read_sharding, warm
from tests.sharding.problems import published


@pytest.mark.parametrize(("network", "devices"), [("alexnet", 8), ("inception_v3", 8)])
def test_elimination_against_numpy(benchmark, network, devices):
    warm()
    tables = sharding_problem(build_network(network), devices, Machine())
    costs = [np.asarray(cost) for cost in tables.cost]
    pairs = [(edge.u, edge.v, np.asarray(edge.cost)) for edge in tables.edges]
    found, expected = against(
        benchmark, lambda: best_strategy(tables).cost, lambda: eliminate(costs, pairs)
    )
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", ["inception3_p64", "transformer_p64"])
def test_large_tables(benchmark, name):
    """Goals on one core: 0.1 and 1 second."""
    warm()
    problem = read_sharding(published(name))
    assert benchmark(lambda: best_strategy(problem)).exact
