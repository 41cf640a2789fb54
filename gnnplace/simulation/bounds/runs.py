"""Runs: short ones on one device need many transfers, long ones make later micro-batches wait.

All M copies of a path of ops take the same way over the devices. Cut the path where it changes its
device: what is between two cuts is a run, on one device. For the longest run, from op ``i`` to op
``j`` of the path, with ``w`` seconds of work a copy,

    step >= h_0(i) + M w + q_0(j),

since all copies of the run are done one after the other, none before the head of ``i``, and after
the last of them comes the tail of ``j``; the run's ends are cuts, so that ``i`` waits for a
transfer and one comes after ``j``. As no run is longer, heads and tails have transfers at
least every ``w`` seconds of the path: with ``with_serial_runs`` told that, an ancestor on the path
that is further back is on another device. So a step is not below the least, over all ``w``, of
this sum and of the longest path by ranks with such heads and tails. (A pipeline that is cut into
stages of ``w`` seconds has a fill of M - 1 stages and a transfer for each.)

``w`` is between the longest op of the path and the whole path. In an interval of it the transfers
are those of its end, the sum that of its beginning; the weakest interval is halved, again and
again. Any path of groups that have all copies and feed each other's will do; it is a critical one.

Complexity: ``HALVINGS`` times O(n + edges + p MOST_KEPT^2) for a path of p groups, and the runs
that are as long as an interval says.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.jit import kernel
from gnnplace.simulation.bounds.paths import path_through
from gnnplace.simulation.bounds.relaxation import Relaxation
from gnnplace.simulation.bounds.serial import with_serial_runs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
HALVINGS = 20
CLOSE, ROUNDING = 1.01, 1e-9


class Interval(NamedTuple):
    """Lengths of the longest run, and what a step takes then.

    Attributes:
        seconds: a bound on the step.
        low: seconds of the longest run, at least.
        high: at most.
        path: longest path with transfers so often, in seconds.
        head: heads of the path's groups, behind a transfer from the path. [p]
        tail: tails, likewise. [p]
    """

    seconds: float
    low: float
    high: float
    path: float
    head: FloatArray
    tail: FloatArray


def by_runs(relaxation: Relaxation) -> float:
    """The bound in seconds; 0 without micro-batches."""
    count = int(relaxation.copies.count.max())
    if count < 2:
        return 0.0
    path = critical(relaxation, count)
    work = relaxation.work[path]
    if len(path) < 2 or work.max() <= 0.0:
        return 0.0
    found = [_assumed(relaxation, path, float(work.max()), float(work.sum()))]
    for _ in range(HALVINGS):
        if found[0].high < CLOSE * found[0].low:
            break
        weakest = heappop(found)
        middle = float(np.sqrt(weakest.low * weakest.high))
        heappush(found, _assumed(relaxation, path, weakest.low, middle))
        heappush(found, _between(weakest, work, count, middle, weakest.high))
    return found[0].seconds


def critical(relaxation: Relaxation, count: int) -> IntArray:
    """A longest path of groups of ``count`` copies each. [p]"""
    copies, first = relaxation.copies, relaxation.copies.begin[:-1]
    every = copies.count == count
    length = relaxation.head[first] + relaxation.work + relaxation.tail[first]
    allowed = copies.full & every[copies.source] & every[copies.target]
    return path_through(relaxation, int(np.where(every, length, -1.0).argmax()), allowed)


def _assumed(relaxation: Relaxation, path: IntArray, low: float, high: float) -> Interval:
    """The interval from ``low`` to ``high``, with heads and tails of its own."""
    here = with_serial_runs(relaxation, path, high * (1.0 + ROUNDING))
    copies, work, cut = here.copies, here.work, cuts(here, path)
    head, tail, work = here.head[copies.begin[path]], here.tail[copies.begin[path]], work[path]
    head[1:] = np.maximum(head[1:], (head + work)[:-1] + cut)
    tail[:-1] = np.maximum(tail[:-1], (tail + work)[1:] + cut)
    interval = Interval(0.0, low, high, here.critical_path, head, tail)
    return _between(interval, work, int(copies.count.max()), low, high)


def cuts(relaxation: Relaxation, path: IntArray) -> FloatArray:
    """Least seconds of a transfer between neighbours on a path, inf for none. [p - 1]"""
    copies, part, count = relaxation.copies, relaxation.machines.part, len(relaxation.work)
    key = copies.target.astype(np.int64) * count + copies.source  # Ascending.
    edge = np.searchsorted(key, path[1:].astype(np.int64) * count + path[:-1])
    return np.where(part[path[1:]] == part[path[:-1]], np.inf, relaxation.crossing[edge])


def _between(interval: Interval, work: FloatArray, count: int, low: float, high: float) -> Interval:
    """A part of an interval. ``work``: seconds of the path's groups [p]; ``count``: copies."""
    ends = low * (1.0 - ROUNDING), high * (1.0 + ROUNDING)
    run = float(_least_run(interval.head, interval.tail, work, count, *ends))
    return interval._replace(seconds=max(interval.path, run), low=low, high=high)


@kernel
def _least_run(
    head: FloatArray, tail: FloatArray, work: FloatArray, count: int, low: float, high: float
) -> float:
    """Least seconds of head, ``count`` copies and tail of a run of that length; inf for none."""
    least = np.inf
    for i in range(len(work)):
        seconds = 0.0
        for j in range(i, len(work)):
            seconds += work[j]
            if seconds > high:
                break
            if seconds >= low:
                least = min(least, head[i] + count * seconds + tail[j])
    return least
