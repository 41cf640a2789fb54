from __future__ import annotations

import pytest

from gnnplace.sharding.solver.tree import elimination_tree, factors_of
from tests.sharding.problems import random_problem


@pytest.mark.parametrize("seed", range(10))
def test_every_table_is_used_once_and_steps_have_at_most_two_children(seed):
    factors = factors_of(random_problem(seed, nodes=9, edges=12))
    steps = elimination_tree(factors)
    assert sorted(k for step in steps for k in step.factors) == list(range(len(factors.scopes)))
    children = sorted(k for step in steps for k in step.children)
    assert children == list(range(len(steps) - 1))
    assert max(len(step.children) for step in steps) <= 2
    assert steps[-1].scope == ()
