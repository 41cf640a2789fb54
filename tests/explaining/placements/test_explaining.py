"""Prices of constraints, on problems where they are known.

Causes of idle time, against what is true at instants that are looked at one by one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings

from gnnplace.explaining.placements.causes import Causes
from gnnplace.explaining.placements.explaining import explain, sum_device_times
from gnnplace.placers.contract import branches
from gnnplace.placing.roster import PlaceOptions, place
from gnnplace.problem.constraints import Constraints, ConstraintWords, apply_constraints
from tests.explaining.placements.steps import random_step
from tests.random_problems import seeds


def named():
    """Four branches of 12 seconds each on four devices, modules by branch."""
    problem = branches()
    return replace(
        problem, module=tuple(name.partition(".")[0] for name in problem.graph.names)
    )


def prices(problem, asked: Constraints) -> dict[str, float]:
    """What each constraint costs, by an exact search."""
    made = apply_constraints(problem, asked)
    few = Constraints(max_devices=asked.max_devices)
    placement = place(made, placer="heft", constraints=few).placement
    found = explain(
        problem, placement, constraints=asked, loosen=PlaceOptions("heft", 0.0)
    )
    assert found.prices is not None
    return {price.constraint: price.gain for price in found.prices}


def test_two_branches_together_cost_a_branch():
    """Where two branches must share a device, each alone is worth what the other takes."""
    found = prices(named(), ConstraintWords(together=["x0,x1"]).constraints())
    assert np.isclose(found["together x0,x1"], 12.0, rtol=0.1)
    assert found["memory of the devices"] == 0.0


def test_each_of_several_constraints_has_its_own_price():
    """The limit on devices costs; the pin of one branch to one of alike devices does not."""
    found = prices(named(), ConstraintWords(pin=["x0=d0"], max_devices=2).constraints())
    assert found["max-devices 2"] > 8.0
    assert found["pin x0=d0"] == 0.0
    assert "headroom" not in found


def test_the_problems_own_pins_have_a_price():
    """Pins that stand in the problem file are loosened all at once."""
    problem = named()
    own = apply_constraints(
        problem, ConstraintWords(pin=["x0=d0", "x1=d0", "x2=d0", "x3=d0"]).constraints()
    )
    found = prices(own, Constraints())
    assert found["the problem's own pins"] > 30.0


def test_a_problem_that_obeys_already_has_the_same_prices():
    """Pins of a captured model stand in its problem; they are loosened one by one all the same."""
    asked = ConstraintWords(pin=["x0=d0", "x1=d0"]).constraints()
    placement = place(named(), placer="heft", constraints=asked).placement
    how = {"constraints": asked, "loosen": PlaceOptions("heft", 0.0)}
    before = explain(named(), placement, **how)
    after = explain(apply_constraints(named(), asked), placement, **how)
    assert before.prices == after.prices
    assert before.prices[0].gain > 0


KEYS = ("computing", "other_device", "transfer", "messages", "nothing_left")


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_causes_are_those_of_every_instant(seed):
    """Between any two events the cause is what a look at the step's middle instant shows."""
    problem, step = random_step(seed)
    found = sum_device_times(Causes(problem, step))
    moved = step.transfers
    events = np.unique(
        np.concatenate(
            [[0.0], step.start, step.finish, moved.start, moved.end, moved.arrival]
        )
    )
    events = events[events <= step.step_time]
    expected = [dict.fromkeys(KEYS, 0.0) for _ in range(3)]
    for begin, end in pairwise(events):
        for d in range(3):
            expected[d][_cause(problem, step, d, (begin + end) / 2)] += end - begin
    for device, own in zip(found, expected, strict=True):
        assert np.allclose(
            [getattr(device, key) for key in KEYS], [own[key] for key in KEYS]
        )
        assert np.isclose(device.computing + device.idle, step.step_time)


def _cause(problem, step, device, instant):
    """What a device does at an instant that is no event."""
    mine = [op for op in step.order.tolist() if step.device[op] == device]
    if any(step.start[op] < instant < step.finish[op] for op in mine):
        return "computing"
    moved, busy = step.transfers, problem.cluster.sender_busy
    for k in range(len(moved.start)):
        own = moved.source[k] == device and busy[device, moved.target[k]]
        if own and moved.start[k] < instant < moved.end[k]:
            return "messages"
    following = next((op for op in mine if step.start[op] > instant), None)
    if following is None:
        return "nothing_left"
    coming = [
        k
        for k in range(len(moved.start))
        if moved.target[k] == device
        and following in problem.graph.consumers(int(moved.tensor[k]))
    ]
    if any(
        step.finish[problem.graph.producer[moved.tensor[k]]] > instant for k in coming
    ):
        return "other_device"
    return "transfer" if any(moved.arrival[k] > instant for k in coming) else "messages"
