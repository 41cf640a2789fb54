from __future__ import annotations

import numpy as np
import pytest

from gnnplace.graph.jit import kernel
from gnnplace.placers.search.gaps import CHUNK, earliest_gap, empty_gaps, take


def scanned(slots, ready, cost):
    """The earliest gap of a list of slots, looked for from its beginning."""
    at = ready
    for begin, end in slots:
        if end <= ready:
            continue
        if at + cost <= begin:
            return at
        at = max(at, end)
    return at


@kernel
def booked(ready, cost, slots):
    """Starts of jobs booked one after the other into the earliest gap of one device."""
    gaps = empty_gaps(2, slots)
    starts = np.empty(len(ready))
    for k in range(len(ready)):
        starts[k], place, slot = earliest_gap(gaps, 1, ready[k], cost[k])
        take(gaps, 1, place, slot, starts[k], starts[k] + cost[k])
    return starts


@pytest.mark.parametrize("shape", ["few gaps", "many gaps", "everything at once"])
def test_jobs_go_where_a_scan_of_all_slots_puts_them(shape):
    rng = np.random.default_rng(1)
    n = 20 * CHUNK
    spread = {"few gaps": 0.8 * n, "many gaps": 4.0 * n, "everything at once": 0.0}[
        shape
    ]
    ready = rng.uniform(0.0, spread, n) if spread else np.zeros(n)
    cost = np.where(rng.random(n) < 0.1, 0.0, rng.exponential(1.0, n))
    starts = booked(ready, cost, n)
    slots = []
    for at, begin, seconds in zip(
        starts.tolist(), ready.tolist(), cost.tolist(), strict=True
    ):
        assert at == scanned(slots, begin, seconds)
        slots.append((at, at + seconds))
        slots.sort()


def test_an_idle_device_starts_at_once():
    assert booked(np.array([5.0]), np.array([6.0]), 1).tolist() == [5.0]


def test_a_gap_that_just_holds_a_job_is_taken():
    ready, cost = np.array([0.0, 4.0, 0.0, 0.0]), np.array([2.0, 1.0, 2.0, 0.5])
    assert booked(ready, cost, 4).tolist() == [0.0, 4.0, 2.0, 5.0]
