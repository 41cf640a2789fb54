from __future__ import annotations

import itertools

import numpy as np
import pytest

from gnnplace.errors import UnsupportedError
from gnnplace.sharding.solver import tree
from gnnplace.sharding.solver.passes import two_passes
from gnnplace.sharding.solver.tree import elimination_tree, make_factors
from tests.sharding.problems import clique, random_problem


@pytest.mark.parametrize("seed", range(40))
def test_bounds_of_configurations_are_the_best_strategies_with_them(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, nodes=int(rng.integers(1, 7)), edges=8, memory=True)
    factors = make_factors(problem)
    weight = (1.0, float(rng.random()))
    steps = elimination_tree(factors)
    passes = two_passes(steps, factors, [(0.0, 1.0), weight])
    best = [np.full(len(cost), np.inf) for cost in problem.cost]
    for strategy in itertools.product(*(range(len(cost)) for cost in problem.cost)):
        value = problem.value(strategy) + weight[1] * (problem.bytes(strategy) or 0.0)
        for node, k in enumerate(strategy):
            best[node][k] = min(best[node][k], value)
    for expected, found in zip(best, passes.node, strict=True):
        np.testing.assert_allclose(found[1], expected)
    whole = min(part[1].min() for part in passes.node)
    for inside, outside in zip(passes.inside, passes.outside, strict=True):
        # The best strategy uses some cell of every table, and no cell is below it.
        assert (inside[1] + outside[1]).min() == pytest.approx(whole)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_cells_of_dense_graphs_are_bounded_by_the_best_strategies_that_use_them(size):
    problem = clique(size, 3, seed=size)
    factors = make_factors(problem)
    steps = elimination_tree(factors)
    passes = two_passes(steps, factors, [(1.0, 0.0)])
    for step, inside, outside in zip(steps, passes.inside, passes.outside, strict=True):
        best = np.full([3] * len(step.scope), np.inf)
        for strategy in itertools.product(range(3), repeat=size):
            cell = tuple(strategy[node] for node in step.scope)
            best[cell] = min(best[cell], problem.value(strategy))
        np.testing.assert_allclose((inside + outside)[0], best)


def test_a_sum_above_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(tree, "CELL_LIMIT", 3)
    factors = make_factors(random_problem(0, nodes=4, edges=8))
    with pytest.raises(UnsupportedError, match="limit"):
        two_passes(elimination_tree(factors), factors, [(1.0, 0.0)])
