"""Causes of idle time, against what is true at instants that are looked at one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings

from gnnplace.report.explanation.causes import Causes
from gnnplace.report.explanation.idle import device_times
from tests.random_problems import seeds
from tests.report.explanation.steps import random_step

KEYS = ("computing", "other_device", "transfer", "messages", "nothing_left")


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_causes_are_those_of_every_instant(seed):
    """Between any two events the cause is what a look at the step's middle instant shows."""
    problem, step = random_step(seed)
    found = device_times(Causes(problem, step))
    moved = step.transfers
    events = np.unique(
        np.concatenate([[0.0], step.start, step.finish, moved.start, moved.end, moved.arrival])
    )
    events = events[events <= step.step_time]
    expected = [dict.fromkeys(KEYS, 0.0) for _ in range(3)]
    for begin, end in pairwise(events):
        for d in range(3):
            expected[d][_cause(problem, step, d, (begin + end) / 2)] += end - begin
    for device, own in zip(found, expected, strict=True):
        assert np.allclose([getattr(device, key) for key in KEYS], [own[key] for key in KEYS])
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
        if moved.target[k] == device and following in problem.graph.consumers(int(moved.tensor[k]))
    ]
    if any(step.finish[problem.graph.producer[moved.tensor[k]]] > instant for k in coming):
        return "other_device"
    return "transfer" if any(moved.arrival[k] > instant for k in coming) else "messages"
