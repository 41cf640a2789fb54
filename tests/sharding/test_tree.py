from __future__ import annotations

import itertools

import numpy as np
import pytest

from gnnplace.errors import UnsupportedError
from gnnplace.sharding import tree
from gnnplace.sharding.tree import elimination_tree, factors_of, two_passes
from tests.sharding.problems import random_problem


@pytest.mark.parametrize("seed", range(40))
def test_bounds_of_configurations_are_the_best_strategies_with_them(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, nodes=int(rng.integers(1, 7)), edges=8, memory=True)
    factors = factors_of(problem)
    weight = (1.0, float(rng.random()))
    passes = two_passes(elimination_tree(factors), factors, [(0.0, 1.0), weight])
    best = [np.full(len(cost), np.inf) for cost in problem.cost]
    for strategy in itertools.product(*(range(len(cost)) for cost in problem.cost)):
        value = problem.value(strategy) + weight[1] * (problem.bytes(strategy) or 0.0)
        for node, k in enumerate(strategy):
            best[node][k] = min(best[node][k], value)
    for expected, found in zip(best, passes.node, strict=True):
        np.testing.assert_allclose(found[1], expected)


@pytest.mark.parametrize("seed", range(10))
def test_every_table_is_used_once_and_steps_have_at_most_two_children(seed):
    factors = factors_of(random_problem(seed, nodes=9, edges=12))
    steps = elimination_tree(factors)
    assert sorted(k for step in steps for k in step.factors) == list(range(len(factors.scopes)))
    children = sorted(k for step in steps for k in step.children)
    assert children == list(range(len(steps) - 1))
    assert max(len(step.children) for step in steps) <= 2
    assert steps[-1].scope == ()


def test_a_sum_above_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(tree, "CELL_LIMIT", 3)
    factors = factors_of(random_problem(0, nodes=4, edges=8))
    with pytest.raises(UnsupportedError, match="limit"):
        two_passes(elimination_tree(factors), factors, [(1.0, 0.0)])
