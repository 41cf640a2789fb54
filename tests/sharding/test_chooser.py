from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.sharding import best_strategy
from gnnplace.sharding.chooser import choose, predictions, scaled, shipped_weights
from gnnplace.sharding.costs import Machine, sharding_problem
from gnnplace.sharding.networks import build_network
from gnnplace.sharding.rivals import greedy
from tests.sharding.problems import random_problem


@pytest.mark.parametrize("seed", range(10))
def test_a_strategy_is_never_below_the_best(seed):
    problem = random_problem(seed, nodes=6, edges=7)
    assert problem.value(choose(problem)) >= best_strategy(problem).cost - 1e-12


@pytest.mark.parametrize("bandwidth", [2e9, 16e9])
@pytest.mark.parametrize("name", ["alexnet", "inception_v3", "transformer", "moe", "gnmt"])
def test_networks_it_was_not_trained_on_are_near_the_best(name, bandwidth):
    problem = sharding_problem(build_network(name), 8, Machine(bandwidth=bandwidth))
    best = best_strategy(problem).cost
    assert problem.value(choose(problem)) <= 1.06 * best
    assert problem.value(choose(problem)) <= problem.value(greedy(problem)) * (1 + 1e-12)


def test_units_do_not_matter():
    problem = random_problem(3, nodes=5, edges=6)
    larger = type(problem)(
        problem.name,
        problem.devices,
        problem.names,
        tuple(1e9 * cost for cost in problem.cost),
        tuple(type(e)(e.u, e.v, 1e9 * e.cost) for e in problem.edges),
    )
    assert choose(problem) == choose(larger)


def test_training_sees_what_choosing_sees():
    costs, graph = scaled(random_problem(4, nodes=5, edges=6))
    weights = shipped_weights()
    plain = predictions(costs, graph, weights, np, 4)[-1]
    tensors = [torch.from_numpy(cost) for cost in costs]
    tables = [[(v, torch.from_numpy(table)) for v, table in around] for around in graph]
    of_weights = {name: torch.from_numpy(np.asarray(value)) for name, value in weights.items()}
    trained = predictions(tensors, tables, of_weights, torch, 4)[-1]
    for mine, other in zip(plain, trained, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-9)
        assert mine.min() == 0
