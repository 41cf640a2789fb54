"""The improvement walk: each unit is decided anew, given the present devices of all others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.graph.orders import COORDINATE, FIXED_ORDERS
from gnnplace.placers import Found, SearchSpace
from gnnplace.placing.roster import make_placer, place
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.decoder_state import (
    DecisionRecord,
    book,
    candidates,
    decide,
    start_state,
)
from gnnplace.policy.decode.improving import (
    BOOKED,
    IMPROVED,
    Improvement,
    ImprovingRollouts,
    improve,
)
from gnnplace.policy.decode.kernels import (
    DYNAMIC,
    NUM_DYNAMIC,
    SCRATCH,
    Decoding,
    observe,
)
from gnnplace.problem import build_problem
from gnnplace.problem.cluster.presets import make_preset
from tests.policy.problems import constrained_problem, trained_like
from tests.random_problems import random_problem, seeds

POLICY = trained_like()
ORDERS = (*FIXED_ORDERS, COORDINATE)


def rollouts_of(problem, walks=1, stay=0.0, orders=IMPROVED):
    return ImprovingRollouts(
        SearchSpace(problem), POLICY, Improvement(walks, stay), orders
    )


def recorded_walk(rollouts, aim, present):
    """Walk once from a placement; return it, and what was seen at each visit."""
    problem = rollouts.space.problem
    units, devices = problem.num_units, problem.num_devices
    record = DecisionRecord(
        np.zeros((units, devices, NUM_DYNAMIC), np.float32),
        np.zeros((units, devices), np.bool_),
        np.zeros(units, np.int32),
    )
    decoding = Decoding(
        order=rollouts.order(aim.order),
        goal=rollouts.goal(aim),
        margin=rollouts.margins[0],
        noise=np.zeros((0, devices), np.float32),
        forced=np.full(units, -1, np.int32),
    )
    device, count = improve(
        rollouts.graph.forward,
        rollouts.weights,
        decoding,
        rollouts.order(BOOKED),
        present,
        rollouts.improvement.stay,
        record,
    )
    assert count == units
    return device, record, decoding


def random_placement(rollouts, rng):
    """Return a device for each unit that it may be on, or the first where there is none."""
    allowed = np.isfinite(rollouts.space.work)
    return np.array(
        [rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in allowed],
        np.int32,
    )


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_a_visit_sees_the_present_devices_of_all_other_units(seed):
    """The reference makes the state of each visit from nothing: decisions first, then bookings."""
    rng = np.random.default_rng(seed)
    rollouts = rollouts_of(constrained_problem(seed))
    walk, aim = rollouts.graph.forward, Aim(ORDERS[seed % len(ORDERS)], 2)
    present = random_placement(rollouts, rng)
    device, record, decoding = recorded_walk(rollouts, aim, present)
    order, booking = rollouts.order(aim.order), rollouts.order(BOOKED)
    visits = list(dict.fromkeys(walk.unit[order].tolist()))
    placement, previous = present.copy(), -1
    for count, unit in enumerate(visits):
        state = start_state(walk)
        for other in range(len(present)):
            if other != unit:
                decide(walk, state, other, placement[other])
        state.usage[1], state.sums[1] = previous, 0.0
        for op in booking:
            if walk.unit[op] == unit:
                break
            book(walk, state, op)
        features, allowed = (
            np.zeros_like(record.features[0]),
            np.zeros_like(record.masks[0]),
        )
        candidates(walk, state, unit, aim.limit, decoding.margin, allowed)
        scratch = np.zeros((SCRATCH, len(allowed)))
        observe(walk, state, op, decoding.goal, allowed, scratch, features)
        assert record.step[count] == op
        assert record.masks[count].tolist() == allowed.tolist()
        # How long the walk has stayed on a device is no part of the placement.
        same = ["work since the device changed" not in name for name in DYNAMIC]
        if aim.order == COORDINATE:
            same = [
                keep and "chunk's share" not in DYNAMIC[k]
                for k, keep in enumerate(same)
            ]
        seen = record.features[count]
        np.testing.assert_allclose(
            seen[:, same], features[:, same], rtol=1e-4, atol=1e-5
        )
        placement[unit] = previous = device[unit]
    assert placement.tolist() == device.tolist()


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_a_unit_stays_unless_another_device_is_better_by_enough(seed):
    rng = np.random.default_rng(seed)
    problem = constrained_problem(seed)
    rollouts = rollouts_of(problem, stay=np.inf)
    aim = Aim(ORDERS[seed % len(ORDERS)], problem.num_devices)
    present = random_placement(rollouts, rng)
    device, record, _ = recorded_walk(rollouts, aim, present)
    moved = np.flatnonzero(device != present)
    unit_of_visit = rollouts.graph.unit[record.step]
    for unit in moved:  # only where it may not stay
        (visit,) = np.flatnonzero(unit_of_visit == unit)
        assert not record.masks[visit, present[unit]]


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_walks_go_where_noise_says(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 12, 3)
    rollouts = rollouts_of(problem)
    aim = Aim(ORDERS[seed % len(ORDERS)], problem.num_devices)
    wanted = random_placement(rollouts, rng)
    noise = np.zeros((problem.num_units, problem.num_devices), np.float32)
    noise[np.arange(problem.num_units), wanted] = 1e6
    present = random_placement(rollouts, rng)
    device = rollouts.improve_once(aim, present, noise=noise)
    assert device.tolist() == wanted.tolist()


def branches(num_branches=4, num_devices=2):
    """Return equal branches that exchange nothing, on equal devices."""
    names = [f"op{k}" for k in range(num_branches)]
    graph = ComputationGraph.from_tensors(names, [])
    cluster = make_preset(f"nvlink-a100-{num_devices}")
    return build_problem("branches", graph, cluster, {"a100": np.ones(num_branches)})


@pytest.mark.parametrize(
    "order", ["alpha", "breadth-first-sources", "reverse-topological"]
)
def test_equal_branches_are_shared_from_one_device(order):
    problem = branches()
    result = place(problem, placer="learned", budget=0, order=order, improve=5)
    assert result.step_time == pytest.approx(2.0)
    assert "improvement walks" in result.note


def test_an_improvement_is_never_worse_than_where_it_began():
    problem = branches()
    rollouts = rollouts_of(problem, walks=3)
    space = rollouts.space
    best = np.array([0, 1, 0, 1], np.int32)
    space.starts = (Found(best, np.arange(4, dtype=np.int32), "given"),)
    assert rollouts.get_start().tolist() == best.tolist()
    assert rollouts.decode(Aim("alpha", 2)).score <= space.score(
        best, np.arange(4, dtype=np.int32)
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"order": "in-time", "improve": 2},
            "is found while a placement is constructed",
        ),
        ({"improve": -1}, "improve -1: must be at least 0"),
    ],
)
def test_what_cannot_be_improved_is_one_line(options, reason):
    with pytest.raises(InputError, match=reason):
        make_placer("learned", **options)
    with pytest.raises(InputError, match="improve is an option of learned"):
        make_placer("best", improve=2)
