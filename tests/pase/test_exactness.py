"""The exact search and the frontier on the tables of published networks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.pase.costs import Machine, sharding_problem
from benchmarks.pase.layers import Layer, Network
from benchmarks.pase.networks.registry import NETWORKS, build_network
from benchmarks.pase.networks.transforming import TransformerSizes, mixture
from gnnplace.sharding import best_strategy, cheapest_within, pareto_frontier
from gnnplace.sharding.solver import search
from tests.sharding.problems import expected_frontier, points_of


@pytest.mark.parametrize("large", [0.0, 1e18])
@pytest.mark.parametrize("name", NETWORKS)
def test_with_and_without_bounds_networks_cost_the_same(monkeypatch, name, large):
    problem = sharding_problem(build_network(name), 8)
    monkeypatch.setattr(search, "SMALL", 1e18)
    plain = best_strategy(problem)
    monkeypatch.setattr(search, "SMALL", 0)
    monkeypatch.setattr(search, "LARGE", large)
    assert best_strategy(problem).cost == pytest.approx(plain.cost, rel=1e-12)


@pytest.mark.parametrize(("name", "devices"), [("alexnet", 8), ("rnnlm", 4)])
def test_limits_walk_along_the_frontier_of_a_network(name, devices):
    problem = sharding_problem(build_network(name), devices)
    answer = pareto_frontier(problem)
    assert answer.epsilon == 0
    assert answer.points[0].cost == pytest.approx(
        best_strategy(problem).cost, rel=1e-12
    )
    for point, following in pairwise(answer.points):
        assert cheapest_within(problem, point.memory).cost == pytest.approx(
            point.cost, rel=1e-12
        )
        below = cheapest_within(problem, point.memory * (1 - 1e-9))
        assert below.cost == pytest.approx(following.cost, rel=1e-12)
        assert below.exact


def small_network(name, layers):
    """The first layers of a network, or a mixture of experts of its own."""
    if name != "mixture":
        return Network(name, build_network(name).layers[:layers])
    shape = TransformerSizes(
        batch=4, sequence=8, features=6, heads=2, hidden=12, experts=4
    )
    first = Layer("x", shape.add(), (None, None))
    return Network(name, (first, *mixture("m", "x", shape)[:layers]))


@pytest.mark.parametrize("bandwidth", [1e8, 16e9])
@pytest.mark.parametrize(
    ("name", "layers", "devices"),
    [("rnnlm", 4, 4), ("alexnet", 5, 2), ("alexnet", 4, 3), ("transformer", 6, 2),
     ("inception_v3", 5, 2), ("gnmt", 6, 2), ("mixture", 4, 2)],
)  # fmt: skip
def test_frontiers_of_small_networks_equal_enumeration(
    name, layers, devices, bandwidth
):
    network = small_network(name, layers)
    problem = sharding_problem(network, devices, Machine(bandwidth=bandwidth))
    expected = expected_frontier(problem, 1e-12)
    np.testing.assert_allclose(points_of(pareto_frontier(problem)), expected, rtol=1e-9)
    assert best_strategy(problem).cost == pytest.approx(expected[0][0], rel=1e-12)
