from __future__ import annotations

import numpy as np
import pytest

from gnnplace.bench.statistics import geometric_interval, mean_interval


def test_the_interval_is_that_of_the_mean():
    values = np.random.default_rng(3).normal(2.0, 1.0, 100).tolist()
    found = mean_interval(values)
    error = 1.96 * np.std(values) / 10  # the normal approximation
    assert found.mean == pytest.approx(np.mean(values))
    assert found.low == pytest.approx(found.mean - error, abs=0.05)
    assert found.high == pytest.approx(found.mean + error, abs=0.05)
    assert found == mean_interval(values)
    assert found.count == 100


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(60):
        found = mean_interval(rng.exponential(1.0, 40).tolist())
        held += found.low <= 1.0 <= found.high
    assert held >= 50


def test_geometric_means():
    found = geometric_interval([0.5, 2.0, 1.0, 1.0])
    assert found.mean == pytest.approx(1.0)
    assert found.low < 1.0 < found.high
    one = geometric_interval([3.0])
    assert (one.low, one.mean, one.high) == pytest.approx((3.0, 3.0, 3.0))
    assert geometric_interval([]) is None
    assert mean_interval([]) is None
