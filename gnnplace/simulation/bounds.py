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
from gnnplace.simulation import bound_kernels
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
    graph, cost, tail = problem.graph, least_times(problem), tails(problem)
    head = downward_rank(graph, cost, np.zeros(len(graph.successor)))
    columns, counts = _columns(problem)
    weighted = bound_kernels.weighted_work(columns, counts, WEIGHT_UPDATES)
    phases = problem.unit_of * np.int32(3) + problem.phase
    units = (
        bound_kernels.on_one_device(part, columns, head, tail) for part in (problem.unit_of, phases)
    )
    values = {
        "critical_path": float((head + cost + tail).max()),
        "work": float(weighted.sum()),
        "windows": _windows(head, tail, weighted),
        "units": max(units),
    }
    return LowerBounds(**{key: value * (1.0 - ROUNDING) for key, value in values.items()})


def lower_bound(problem: Problem) -> float:
    """The best lower bound on the step time of ``problem``, in seconds."""
    return lower_bounds(problem).best


def _columns(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Allowed times of devices that are alike, and how many devices each column is. [n, K], [K]

    Devices of one kind are alike but for those that ops are pinned to.
    """
    pinned = np.unique(problem.pin[problem.pin >= 0])
    group = problem.kind_of.copy()
    group[pinned] = len(problem.cluster.kinds) + np.arange(len(pinned))
    _, first, counts = np.unique(group, return_index=True, return_counts=True)
    columns = problem.kind_times.take(problem.kind_of[first], axis=1)
    elsewhere = (problem.pin >= 0)[:, None] & (problem.pin[:, None] != first)
    columns[elsewhere] = np.inf
    columns[~np.isfinite(columns).any(axis=1)] = 0.0
    return columns, counts.astype(np.float64)


def _windows(head: FloatArray, tail: FloatArray, weighted: FloatArray) -> float:
    a, b = _thresholds(head), _thresholds(tail)
    row = np.searchsorted(a, head, side="right") - 1
    column = np.searchsorted(b, tail, side="right") - 1
    work = np.bincount(row * len(b) + column, weighted, len(a) * len(b)).reshape(len(a), len(b))
    inside = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    value = np.where(inside > 0, a[:, None] + b[None, :] + inside, 0.0)
    return float(value.max())


def _thresholds(values: FloatArray) -> FloatArray:
    """At most ``THRESHOLDS`` of the values, spread evenly over their ranks, the least included."""
    ranks = np.linspace(0, len(values) - 1, THRESHOLDS).astype(np.int64)
    return np.unique(np.sort(values)[ranks])
