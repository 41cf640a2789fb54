"""Other devices for an op or a module, against simulations from scratch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InputError
from gnnplace.explaining.placements.alternatives import alternatives, find_named_ops
from gnnplace.placers.contract import training_chain
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem.placement import list_faults
from gnnplace.simulation import finish_placement, simulate
from tests.random_problems import random_order, random_problem, seeds


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_the_step_is_that_of_a_simulation_from_scratch(seed):
    """Each other device's step is a simulation's, and never longer than in the same order."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 12, 3, constrained=True, complete=False)
    space, order = SearchSpace(problem), random_order(problem, rng)
    device = space.spread(space.allow(np.zeros(problem.num_units, dtype=np.int32)))
    op = int(rng.integers(12))
    for other in alternatives(space, device, order, np.array([op], dtype=np.int32)):
        moved = np.where(problem.unit_of == problem.unit_of[op], other.device, device)
        same_order = simulate(problem, finish_placement(problem, moved, order))
        if not problem.unit_allowed[problem.unit_of[op], other.device]:
            assert other.fault == list_faults(problem, moved)[0]
        again = simulate(problem, finish_placement(problem, other.placed, other.order))
        assert other.placed.tolist() == moved.tolist()
        assert again.step_time == other.step_time <= same_order.step_time
        assert bool(other.fault) == (not again.feasible)


def test_ops_are_found_by_name_and_by_module():
    """An op by its exact name, all copies of it, or the ops of a module; else what is near."""
    problem = training_chain()
    named = replace(
        problem, module=tuple(f"layers.{name[1]}" for name in problem.graph.names)
    )
    space = SearchSpace(named)
    assert find_named_ops(space, op="f2").tolist() == [problem.graph.index["f2"]]
    assert len(find_named_ops(space, module="layers.2")) == 3
    with pytest.raises(
        InputError, match=r"no module matches 'layer.2'; near: 'layers.2'"
    ):
        find_named_ops(space, module="layer.2")
