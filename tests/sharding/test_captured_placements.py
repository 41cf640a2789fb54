from __future__ import annotations

import itertools

import pytest

from gnnplace.sharding import best_strategy
from gnnplace.sharding.captured_placements import (
    PlacedOp,
    PlacedStep,
    PlacedValue,
    placement_problem,
)
from gnnplace.splitting.tables.costs import MeshMachine
from gnnplace.splitting.tables.layout import PARTIAL, REPLICATED

R, P = REPLICATED, PARTIAL


def product() -> PlacedStep:
    """y = x w, and the gradient of w from y as if that were its own gradient."""
    x, w, y, g = (PlacedValue(shape, 4) for shape in ((8, 4), (4, 6), (8, 6), (4, 6)))
    homes = ((R,), (0,), (1,))
    forward = ((R, R), (0, R), (1, R), (P, R))  # result and weight, x being there whole
    rules = tuple((out, {1: 1, P: 0}.get(out, R)) for out, _ in forward)
    backward = ((R, R), (P, 0), (1, 1))
    ops = (
        PlacedOp("w", (1,), (), homes, state=True),
        PlacedOp("product", (2,), (1,), rules, flops=384.0),
        PlacedOp("gradient", (3,), (2,), backward, flops=384.0),
    )
    return PlacedStep("product", ops, (x, w, y, g), ((3, 1),))


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_the_search_finds_the_least_of_all(mesh):
    problem = placement_problem(product(), mesh, MeshMachine(flops=1.0, bandwidth=1.0))
    sizes = [range(len(cost)) for cost in problem.cost]
    least = min(problem.value(chosen) for chosen in itertools.product(*sizes))
    assert best_strategy(problem).cost == pytest.approx(least)


def test_columns_cost_no_move():
    problem = placement_problem(product(), (2,), MeshMachine(flops=1.0, bandwidth=1e-6))
    best = best_strategy(problem)
    assert best.cost == pytest.approx(384.0)  # both products halved
    assert best.configuration == (2, 2, 2)


def test_a_sum_is_brought_to_its_parameters_home():
    problem = placement_problem(product(), (2,), MeshMachine(flops=1e12, bandwidth=1.0))
    data_parallel = problem.value((0, 1, 1))
    assert data_parallel == pytest.approx(96.0)  # all-reduce of 4 * 6 * 4 bytes over two


def test_equal_parts_alone():
    problem = placement_problem(product(), (3,), MeshMachine())
    assert [len(cost) for cost in problem.cost] == [2, 2, 2]


def test_memory():
    problem = placement_problem(product(), (2,), MeshMachine())
    assert list(problem.memory[0]) == [4 * 96.0, 4 * 48.0, 4 * 48.0]
