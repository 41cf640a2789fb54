from __future__ import annotations

import numpy as np
import pytest

from gnnplace.bench.statistics import (
    average_nested,
    average_nested_geometric,
    geometric_interval,
    mean_interval,
)


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


def test_groups_weigh_the_same_however_many_values_they_have():
    found = average_nested([[1.0], [2.0, 4.0, 3.0]])
    assert (found.mean, found.count) == (2.0, 2)
    assert average_nested([]) is None
    geometric = average_nested_geometric([[1.0], [2.0, 8.0]])
    assert geometric.mean == pytest.approx(2.0)


def test_both_problems_and_seeds_widen_the_interval():
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 1, 30)
    groups = [(c + rng.normal(0, 1, 3)).tolist() for c in centres]
    found = average_nested(groups)
    width = found.high - found.low
    # Of the mean of 30 group means, each drawn anew with its 3 seeds: variances add up.
    means = np.array([np.mean(group) for group in groups])
    within = np.mean([np.var(group) / len(group) for group in groups])
    expected = 2 * 1.96 * np.sqrt((means.var() + within) / len(groups))
    assert width == pytest.approx(expected, rel=0.15)
    same = average_nested([[c] for c in means])
    assert same.high - same.low < width


def test_nested_intervals_cover_the_truth():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        groups = [(c + rng.normal(0, 0.5, 2)).tolist() for c in rng.normal(3, 1, 25)]
        found = average_nested(groups)
        hits += found.low <= 3.0 <= found.high
    assert hits >= 52
