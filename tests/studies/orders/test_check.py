from __future__ import annotations

import pytest

from gnnplace.data.random_families import random_problem
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.studies.orders.check import AUTO, check
from gnnplace.studies.orders.problems import StudyProblem
from gnnplace.studies.orders.tree import Tree


def test_each_way_is_the_learned_placer_with_its_orders():
    entries = [
        StudyProblem("layered", "own", random_problem("layered", s, ops=(30, 40))) for s in (1, 2)
    ]
    found = check(entries, {"one": Tree(("topological",), 1)})
    assert found["families"] == ["layered", "layered"]
    for i, entry in enumerate(entries):
        for way, orders in ((AUTO, None), ("one", ("topological",))):
            expected = LearnedPlacer(orders=orders).place(entry.problem).step_time
            assert found[way]["step_time"][i] == pytest.approx(expected, rel=1e-5)
            assert found[way]["seconds"][i] > 0.0
