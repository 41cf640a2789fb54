from __future__ import annotations

import pytest

from gnnplace.sharding.solver.supported import (
    Point,
    find_undominated,
    list_supported_points,
)
from gnnplace.sharding.solver.tree import make_factors
from tests.sharding.problems import every_point, random_problem


def test_undominated():
    points = [
        Point(*pair, ()) for pair in [(3, 1), (1, 3), (2, 3), (1, 4), (2, 2), (3, 1)]
    ]
    assert [(p.time, p.memory) for p in find_undominated(points)] == [
        (1, 3),
        (2, 2),
        (3, 1),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_no_strategy_is_below_the_hull(seed):
    problem = random_problem(seed, nodes=5, edges=6, memory=True)
    found = list_supported_points(problem, make_factors(problem))
    every = every_point(problem)
    for weight in found.weights:
        best = min(weight[0] * t + weight[1] * m for t, m in every)
        here = min(weight[0] * p.time + weight[1] * p.memory for p in found.points)
        assert here == pytest.approx(best, rel=1e-9)
