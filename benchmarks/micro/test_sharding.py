"""Elimination of PaSE's problems: against variable elimination in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.micro.references import against, eliminate
from gnnplace.sharding import best_strategy, warm
from gnnplace.sharding.costs import Machine, sharding_problem
from gnnplace.sharding.networks.registry import build_network


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
