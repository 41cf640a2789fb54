"""Lower bounds on the step time: no placement of a problem can be below them.

All take every op at its least time on an allowed device and leave transfers out.

* **Critical path**: the longest path of least times (head + time + tail of an op).
* **Work**: for any weights ``w`` of devices that are not negative and sum to 1, the step time is at
  least ``sum over ops of min over devices of w[d] * time[op, d]``: it is the linear programme of
  splitting ops over devices, dualised. Equal devices share a weight; the weights come from
  multiplicative updates (Arora, Hazan and Kale, 2012), and every iterate is a valid bound.
* **Windows** (after Fernandez and Bussell, 1973): ops that cannot start before ``a`` and leave at
  least ``b`` seconds of path after them do their work within step time - a - b.
* **Units**: the ops of a colocation class run one after the other on one device, after the earliest
  head among them and before the least tail; the same for each phase of the class alone.

Complexity: O(n D + edges + g^2) with g = 64 thresholds of the windows. The result is lowered by one
part in 10^12, so that another order of summation cannot put a simulated step below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.ranks import downward_rank
from gnnplace.problem import Problem
from gnnplace.simulation.compiled import least_times, tails

FloatArray = NDArray[np.float64]
THRESHOLDS = 64
WEIGHT_UPDATES = 60
ROUNDING = 1e-12


@dataclass(frozen=True)
class LowerBounds:
    """The bounds by name, in seconds."""

    critical_path: float
    work: float
    windows: float
    units: float

    @property
    def best(self) -> float:
        """The largest of them."""
        return max(self.critical_path, self.work, self.windows, self.units)


def lower_bounds(problem: Problem) -> LowerBounds:
    """All bounds of ``problem``."""
    cost, tail = least_times(problem), tails(problem)
    head = downward_rank(problem.graph, cost, np.zeros(len(problem.graph.edges[0])))
    weighted = _weighted_work(problem)
    values = {
        "critical_path": float((head + cost + tail).max()),
        "work": float(weighted.sum()),
        "windows": _windows(head, tail, weighted),
        "units": _units(problem, head, tail),
    }
    return LowerBounds(**{key: value * (1.0 - ROUNDING) for key, value in values.items()})


def lower_bound(problem: Problem) -> float:
    """The best lower bound on the step time of ``problem``, in seconds."""
    return lower_bounds(problem).best


def _columns(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Distinct columns of allowed times, and how many devices have each. [n, K], [K]"""
    times = np.where(problem.allowed, problem.times, np.inf)
    times[~np.isfinite(times).any(axis=1)] = 0.0
    columns, counts = np.unique(times, axis=1, return_counts=True)
    return columns, counts.astype(np.float64)


def _weighted_work(problem: Problem) -> FloatArray:
    """Each op's share of the work bound under the best weights found. [n]"""
    columns, counts = _columns(problem)
    weight = np.full(len(counts), 1.0 / counts.sum())
    best = np.zeros(problem.num_ops)
    for _ in range(WEIGHT_UPDATES if len(counts) > 1 else 1):
        priced = columns * weight
        choice = priced.argmin(axis=1)
        share = np.take_along_axis(priced, choice[:, None], axis=1)[:, 0]
        if share.sum() > best.sum():
            best = share
        own = np.take_along_axis(columns, choice[:, None], axis=1)[:, 0]
        load = np.bincount(choice, own, len(counts)) / counts
        weight = weight * np.exp(0.2 * load / max(load.max(), 1e-300))
        weight /= (weight * counts).sum()
    return best


def _windows(head: FloatArray, tail: FloatArray, weighted: FloatArray) -> float:
    a = np.unique(np.quantile(head, np.linspace(0, 1, THRESHOLDS), method="lower"))
    b = np.unique(np.quantile(tail, np.linspace(0, 1, THRESHOLDS), method="lower"))
    row = np.searchsorted(a, head, side="right") - 1
    column = np.searchsorted(b, tail, side="right") - 1
    work = np.bincount(row * len(b) + column, weighted, len(a) * len(b)).reshape(len(a), len(b))
    inside = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    value = np.where(inside > 0, a[:, None] + b[None, :] + inside, 0.0)
    return float(value.max())


def _units(problem: Problem, head: FloatArray, tail: FloatArray) -> float:
    by_phase = np.unique(problem.unit_of.astype(np.int64) * 3 + problem.phase, return_inverse=True)
    return max(
        _one_device(problem, problem.unit_of, head, tail),
        _one_device(problem, by_phase[1].astype(np.int32), head, tail),
    )


def _one_device(
    problem: Problem, part: NDArray[np.int32], head: FloatArray, tail: FloatArray
) -> float:
    """Bound of ops of one part running one after the other on the best device for them."""
    count = int(part.max()) + 1
    work = np.zeros((count, problem.num_devices))
    np.add.at(work, part, np.where(problem.allowed, problem.times, np.inf))
    earliest, least = np.full(count, np.inf), np.full(count, np.inf)
    np.minimum.at(earliest, part, head)
    np.minimum.at(least, part, tail)
    work = work.min(axis=1)
    total = earliest + np.where(np.isfinite(work), work, 0.0) + least
    return float(total.max())
