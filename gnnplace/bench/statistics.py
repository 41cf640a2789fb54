"""Means with bootstrap confidence intervals (Efron, "Bootstrap methods", Ann. Statist. 1979).

Problems are resampled, not seeds: the interval says how far the figure would move with other
problems of the same kind. Percentile method, 95 %, 10,000 resamples, always the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        mean: of the values.
        low: lower end.
        high: upper end.
        count: of values.
    """

    mean: float
    low: float
    high: float
    count: int


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Arithmetic mean with its interval; None without values."""
    if not values:
        return None
    data = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(data.mean()), float(low), float(high), len(data))


def geometric_interval(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Geometric mean of positive values with its interval; None without values."""
    found = mean_interval(np.log(values).tolist(), seed=seed) if values else None
    if found is None:
        return None
    ends = np.exp([found.mean, found.low, found.high])
    return Interval(float(ends[0]), float(ends[1]), float(ends[2]), found.count)
