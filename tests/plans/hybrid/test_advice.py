"""Cross-over, recommendation, gain."""

from __future__ import annotations

import pytest

from gnnplace.plans.hybrid.advice import (
    advise,
    crossover,
    gain_at_scale,
    sentence,
)
from gnnplace.plans.hybrid.gradients import StepParts
from gnnplace.plans.hybrid.splits import SplitRow
from gnnplace.units import training_text


def row(groups: int, devices: int, seconds: float | None) -> SplitRow:
    """A row that takes so long in all."""
    parts = None if seconds is None else StepParts(seconds, 0.0, 0.0)
    return SplitRow(
        groups, devices, 1, parts, groups, 1, 1.0, "" if parts else "too large"
    )


ROWS = [
    row(1, 1, 100.0), row(2, 1, 52.0), row(1, 2, 60.0), row(4, 1, 30.0), row(2, 2, 31.0),
    row(8, 1, 25.0), row(4, 2, 20.0), row(2, 4, 40.0), row(16, 1, 28.0), row(8, 2, 16.0),
]  # fmt: skip


def test_the_crossover_holds_from_there_on() -> None:
    """At two devices nobody gains, at eight and beyond the hybrid does."""
    assert crossover(ROWS) == 8
    assert crossover(ROWS[:5]) is None
    assert crossover([*ROWS, row(32, 1, 1.0), row(16, 2, 2.0)]) is None


def test_the_recommendation() -> None:
    """The fastest split, and how much faster than data parallelism on all devices."""
    advice = advise(ROWS)
    assert advice.best is ROWS[-1]
    assert advice.gain == pytest.approx(28.0 / 16.0 - 1)
    said = sentence(advice, 16)
    assert "8 data-parallel groups of 2 devices" in said
    assert "1.75 times" in said
    assert said.count(".") == said.count("1.75") + 1  # one sentence


def test_the_gain_at_scale_is_over_the_best_data_parallelism() -> None:
    """Which is not at the largest number of devices."""
    assert gain_at_scale(ROWS) == pytest.approx(25.0 / 16.0 - 1)
    assert gain_at_scale(ROWS[:1]) is None


def test_fewer_devices_may_be_best() -> None:
    """Then the sentence says how many are in use."""
    rows = [row(1, 1, 10.0), row(2, 1, 12.0), row(4, 1, 20.0)]
    told = sentence(advise(rows), 4)
    assert "use one of them alone: 10 s" in told
    assert "data parallelism on all 4 takes 2.00 times as long" in told
    assert "2 of them in use" in sentence(advise(rows[1:]), 4)


def test_where_data_parallelism_does_not_fit() -> None:
    """The hybrid is recommended, and nothing where nothing fits."""
    rows = [row(1, 1, None), row(2, 1, None), row(1, 2, 9.0)]
    advice = advise(rows)
    assert advice.gain is None
    assert "not possible" in sentence(advice, 2)
    assert "No way" in sentence(advise(rows[:2]), 2)
    assert crossover(rows) == 2


def test_times_for_people() -> None:
    """Units change at twice their size."""
    assert training_text(90.0) == "90 s"
    assert training_text(600.0) == "10 min"
    assert training_text(36000.0) == "10 h"
    assert training_text(10 * 86400.0) == "10 days"
    assert training_text(float("inf")) == "unknown"
