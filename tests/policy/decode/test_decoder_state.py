"""The partial schedule: which devices are open to a unit, and what decisions and bookings leave."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.decoder_state import book, candidates, decide, start_state
from gnnplace.policy.decode.walk import WalkGraph
from tests.random_problems import random_problem, seeds


def walk_of(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(3, 20)), int(rng.integers(2, 5)))
    graph = WalkGraph(SearchSpace(problem))
    return graph.forward, graph.order("topological"), rng


def open_to(walk, state, unit, limit, margin=0.0):
    allowed = np.zeros(walk.time.shape[1], np.bool_)
    count = candidates(walk, state, unit, limit, margin, allowed)
    assert count == allowed.sum()
    return set(np.flatnonzero(allowed).tolist())


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_a_unit_always_has_a_device_that_can_run_it(seed):
    walk, order, rng = walk_of(seed)
    state = start_state(walk)
    for op in order:
        unit = walk.unit[op]
        if state.device[unit] < 0:
            devices = open_to(
                walk, state, unit, int(rng.integers(1, 5)), float(rng.uniform(0, 3))
            )
            able = set(np.flatnonzero(np.isfinite(walk.unit_time[unit])).tolist())
            assert devices
            assert devices <= able
            decide(walk, state, unit, int(rng.choice(sorted(devices))))
        book(walk, state, op)
    assert state.used.sum() == state.usage[0] == len(set(state.device.tolist()))
    np.testing.assert_allclose(state.sums[0], walk.unit_work.sum())
    np.testing.assert_allclose(state.state.sum(), walk.unit_state.sum())


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_bookings_wait_for_inputs_and_never_overlap(seed):
    walk, order, rng = walk_of(seed)
    state = start_state(walk)
    booked = {d: 0.0 for d in range(walk.time.shape[1])}
    for op in order:
        unit = walk.unit[op]
        if state.device[unit] < 0:
            choices = np.flatnonzero(np.isfinite(walk.unit_time[unit]))
            decide(walk, state, unit, int(rng.choice(choices)))
        book(walk, state, op)
        device = int(state.device[unit])
        start = state.booked.finish[op] - walk.time[op, device]
        inputs = walk.before_op[walk.before_offset[op] : walk.before_offset[op + 1]]
        assert start >= max([booked[device], *state.booked.finish[inputs]]) - 1e-9
        booked[device] = float(state.booked.finish[op])


def test_once_the_limit_is_reached_used_devices_alone_are_open():
    walk, _, _ = walk_of(3)
    free = [
        u for u in range(len(walk.unit_work)) if np.isfinite(walk.unit_time[u]).all()
    ]
    state = start_state(walk)
    decide(walk, state, free[0], 1)
    loose = walk._replace(memory=np.full_like(walk.memory, np.inf))
    assert open_to(loose, state, free[1], 1) == {1}
    assert len(open_to(loose, state, free[1], 2)) == walk.time.shape[1]


def test_memory_closes_a_device_until_no_other_is_left():
    walk, _, _ = walk_of(3)
    free = [
        u for u in range(len(walk.unit_work)) if np.isfinite(walk.unit_time[u]).all()
    ]
    state = start_state(walk)
    room = np.full_like(walk.memory, np.inf)
    room[0] = -1.0
    devices = set(range(walk.time.shape[1]))
    assert open_to(walk._replace(memory=room), state, free[0], 9) == devices - {0}
    assert (
        open_to(walk._replace(memory=np.full_like(room, -1.0)), state, free[0], 9)
        == devices
    )
