"""Means with bootstrap confidence intervals (Efron, "Bootstrap methods", Ann. Statist. 1979).

Of single values problems are resampled: the interval says how far the figure would move with other
problems of the same kind. Of groups, a group a problem and a value a seed, problems are resampled
and within each its seeds (the bootstrap of nested samples: Davison and Hinkley, "Bootstrap Methods
and their Application", 1997, section 3.8). Percentile method, 95 %, always the same resamples:
10,000, of groups 2,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray, LongArray

RESAMPLES = 10_000
NESTED_RESAMPLES = 2_000
AT_ONCE = 1_000_000  # values drawn: what memory there is for
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        mean: The mean of the values.
        low: Lower end.
        high: Upper end.
        count: The number of values.
    """

    mean: float
    low: float
    high: float
    count: int


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Return the arithmetic mean with its interval, or None without values."""
    if not values:
        return None
    data = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(data), size=(RESAMPLES, len(data)))
    means = data[drawn].mean(axis=1)
    return _interval(float(data.mean()), means, len(data))


def _interval(mean: float, resampled: FloatArray, count: int) -> Interval:
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(resampled, ends)
    return Interval(mean, float(low), float(high), count)


def geometric_interval(values: Sequence[float]) -> Interval | None:
    """Return the geometric mean of positive values with its interval, or None without values."""
    return _exponential(mean_interval(np.log(values).tolist()) if values else None)


def average_nested(
    groups: Sequence[Sequence[float]], *, seed: int = 0
) -> Interval | None:
    """Return the mean of the groups' means with its interval; None without groups.

    Args:
        groups: The groups of values, none empty.
        seed: The seed of the resamples.
    """
    if not groups:
        return None
    sizes = np.array([len(group) for group in groups])
    values = np.zeros((len(groups), sizes.max()))
    for row, group in zip(values, groups, strict=True):
        row[: len(group)] = group
    mean = float((values.sum(axis=1) / sizes).mean())
    rng = np.random.default_rng(seed)
    at_once = max(1, AT_ONCE // values.size)
    counts = [
        min(at_once, NESTED_RESAMPLES - k) for k in range(0, NESTED_RESAMPLES, at_once)
    ]
    means = np.concatenate([_resample(values, sizes, count, rng) for count in counts])
    return _interval(mean, means, len(groups))


def _resample(
    values: FloatArray, sizes: LongArray, count: int, rng: np.random.Generator
) -> FloatArray:
    """Return the means of ``count`` resamples of groups, and of the values in each.

    Shapes: [G, S] and [G] give [count].
    """
    group = rng.integers(len(sizes), size=(count, len(sizes)))
    size = sizes[group]
    uniform = rng.random((*group.shape, values.shape[1]))
    place = (uniform * size[..., None]).astype(np.int64)
    used = np.arange(values.shape[1]) < size[..., None]
    drawn = np.where(used, values[group[..., None], place], 0.0)
    return np.asarray((drawn.sum(axis=2) / size).mean(axis=1))


def average_nested_geometric(groups: Sequence[Sequence[float]]) -> Interval | None:
    """Return what ``average_nested`` does, for geometric means of positive values."""
    return _exponential(average_nested([np.log(group).tolist() for group in groups]))


def _exponential(found: Interval | None) -> Interval | None:
    """Return the interval of values from one of their logarithms."""
    if found is None:
        return None
    logs = [found.mean, found.low, found.high]
    mean, low, high = np.exp(logs).tolist()
    return Interval(mean, low, high, found.count)
