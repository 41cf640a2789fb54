"""Candidates differ, can run, and are wanted in number; placers that fail are rows."""

from __future__ import annotations

import numpy as np

from gnnplace.errors import InputError
from gnnplace.placing.roster import make_placer as placer
from gnnplace.run.measuring.candidates import draw_candidates
from gnnplace.simulation import simulate
from tests.measurements.test_calibration import problem


def made(count=30, seed=0):
    p = problem()

    def place(name):
        if name == "broken":
            raise InputError("cannot")
        return placer(name).place(p).placement

    return p, draw_candidates(
        p, ["single", "broken", "heft", "single"], place, count, seed
    )


def test_they_differ_and_can_run():
    p, found = made()
    placed = [c.placement for c in found if c.placement is not None]
    assert len(placed) == 30
    keys = {tuple(c.device) + tuple(np.concatenate(c.sequence)) for c in placed}
    assert len(keys) == 30
    assert all(simulate(p, c).feasible for c in placed)
    assert [c.error for c in found if c.placement is None] == ["cannot"]
    kinds = {c.name.rstrip(" 0123456789") for c in found}
    assert {
        "single",
        "heft",
        "predicted alike",
        "unbalanced",
        "mixture",
        "random",
    } <= kinds


def test_predicted_alike_is_alike_and_far_from_the_best():
    p, found = made()
    best = min(
        simulate(p, c.placement).step_time for c in found if c.placement is not None
    )
    alike = [c for c in found if c.name.startswith("predicted alike")]
    for c in alike:
        assert simulate(p, c.placement).step_time < 1.1 * best


def test_the_same_seed_gives_the_same():
    first, second = (
        [c.placement.device.tolist() for c in made(20, 3)[1] if c.placement is not None]
        for _ in range(2)
    )
    assert first == second


def test_they_span_the_range_of_step_times():
    """Many are predicted alike; those chosen are spread out, and each kind is among them."""
    p, found = made(30)
    times = np.sort(
        np.log([simulate(p, c.placement).step_time for c in found if c.placement])
    )
    gaps = np.diff(times)
    reach = times[-1] - times[0]
    assert gaps.max() < 0.4 * reach
    assert (gaps > 0.01 * reach).sum() >= 12
    p, few = made(10)
    kinds = {c.kind for c in few if c.placement is not None}
    assert {"placer", "predicted alike", "unbalanced", "mixture", "random"} <= kinds
