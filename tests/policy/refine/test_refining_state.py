from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.policy.refine.refining_state import (
    next_distance,
    read_previous,
    settle,
    start_pass,
)
from tests.policy.refine.test_refining import given_placement
from tests.random_problems import seeds

torch.set_num_threads(1)


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_what_is_known_of_a_placement_is_its_schedule(seed):
    passes, placed = given_placement(seed)
    g, problem = passes.ground, passes.space.problem
    for back in (0, 1):
        known = read_previous(g, placed, back)
        np.testing.assert_array_equal(known.device[problem.unit_of], placed.device)
        position = np.argsort(known.order)
        source, target, _ = problem.graph.edges
        first, second = (target, source) if back else (source, target)
        assert (position[first] < position[second]).all()
        assert known.critical.max() == pytest.approx(1.0)
        assert (known.critical >= 0.0).all()
    step_time = passes.space.simulator.step_time(placed.device, placed.order)
    assert read_previous(g, placed, 0).seconds >= step_time * (1 - 1e-9)


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_the_next_op_is_the_first_of_the_sequence_that_is_not_of_the_unit(seed):
    passes, placed = given_placement(seed)
    g, problem = passes.ground, passes.space.problem
    known = read_previous(g, placed, 0)
    s = start_pass(g.c, g.units, known)
    for d in range(problem.num_devices):
        sequence = [op for op in known.order if placed.device[op] == d]
        for unit in range(problem.num_units):
            left = [op for op in sequence if problem.unit_of[op] != unit]
            wanted = known.distance[left[0]] if left else 0.0
            assert next_distance(g.c, s, known, d, unit) == wanted


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_loads_follow_the_units(seed):
    passes, placed = given_placement(seed)
    g, problem = passes.ground, passes.space.problem
    known = read_previous(g, placed, 0)
    s = start_pass(g.c, g.units, known)
    rng = np.random.default_rng(seed)
    for unit in range(problem.num_units):
        allowed = np.flatnonzero(problem.unit_allowed[unit])
        settle(g.units, known, s, unit, int(rng.choice(allowed)))
    loads = np.zeros(problem.num_devices)
    np.add.at(loads, s.device, g.units.time[np.arange(problem.num_units), s.device])
    np.testing.assert_allclose(s.load, loads, atol=1e-9)
    assert s.counts[2] == (s.device != known.device).sum()
