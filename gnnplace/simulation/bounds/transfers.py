"""Neighbours are on one device, one after the other, or pay for a transfer.

Assume that the step takes less than ``limit``. An edge whose transfer would lie on a path of
``limit`` or more seconds can have no transfer, so its two ends are on one device. Joining these
units lengthens heads, tails and work, which rules out further transfers. In the end the joined
problem has bounds of its own, or a part that fits on no device. The step time is at least the
smaller of that bound and the shortest path for which units were joined. The best limit is found by
bisection, from the time of all work on one device. Such refutations of an assumed step time are
known as destructive bounds, or shaving (Martin and Shmoys, 1996; Klein and Scholl, 1999). Memory
counts too: two parts that no device can hold together must have a transfer, whatever it takes.

A path through a transfer is, by ranks of copies, the head of the producer's copy, the op, the
transfer over the link that is best for it, the consumer and its tail. All copies of an edge go over
one link, one after the other.

Complexity: ``ROUNDS`` times that of the bounds, and of joining.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.simulation.bounds.relaxation import Relaxation

ROUNDS = 7
FEW_ROUNDS = 4
ONE_ROUND = 1
JOININGS = 3
# The groups of copies above which few rounds, or one, are played.
LARGE, HUGE = (6_000, 200_000)
ALMOST = 1.0 - 1e-9
CLOSE = 1.002
FAR = 8.0


def with_transfers(relaxation: Relaxation, least: float) -> float:
    """Return a bound in seconds that is not below ``least``, which is one already."""
    if len(relaxation.crossing) == 0 or not np.isfinite(least) or least <= 0:
        return least
    alone = float(relaxation.part_columns.sum(axis=0).min())
    fits = (relaxation.machines.memory >= relaxation.machines.state.sum()).any()
    low = least
    high = max(least, alone if np.isfinite(alone) and fits else FAR * least)
    limit = high * ALMOST
    for _ in range(_rounds(len(relaxation.work))):
        if limit <= low * CLOSE:
            break
        shaved_bound = shave_bound(relaxation, limit)
        # Nothing fits at all, which a bound does not report.
        if shaved_bound == np.inf:
            break
        low = max(low, shaved_bound)
        high = max(high if shaved_bound >= limit else limit, low)
        limit = float(np.sqrt(low * high))
    return low


def _rounds(groups: int) -> int:
    if groups <= LARGE:
        return ROUNDS
    if groups <= HUGE:
        return FEW_ROUNDS
    return ONE_ROUND


def shave_bound(relaxation: Relaxation, limit: float) -> float:
    """Return a bound in seconds from joining what cannot have a transfer within ``limit`` seconds.

    If the step takes less than all of the paths that are joined for, they are joined rightly and it
    takes what follows from that; so it takes the less of the two.
    """
    current = relaxation
    shortest = np.inf
    for _ in range(JOININGS):
        part = current.machines.part
        copies = current.copies
        path = through(current)
        source = part[copies.source]
        target = part[copies.target]
        one = (source != target) & (path >= limit)
        if not one.any():
            break
        shortest = min(shortest, float(path[one].min()))
        joined = current.machines.joined(source[one], target[one])
        if not joined.possible:
            return shortest
        current = current.with_machines(joined)
        longest = float(current.part_columns.min(axis=1).max())
        if longest >= limit:
            return min(shortest, longest)
    if current is relaxation:
        return 0.0
    return min(shortest, max(current.bounds().values()))


def through(relaxation: Relaxation) -> FloatArray:
    """Return the longest path in seconds through each edge if it has a transfer. [E]"""
    copies = relaxation.copies
    head = relaxation.head
    tail = relaxation.tail
    work = relaxation.work
    source = copies.source
    target = copies.target
    count = copies.count
    slack = count[target] - copies.matched
    turns = (count[source] > 1) & (count[target] > 1)
    service = np.where(turns, relaxation.service, 0.0)
    latency = relaxation.crossing - relaxation.service
    served = np.full(len(source), -np.inf)
    longest = np.zeros(len(source))
    for k in range(int(count.max())):
        rank = np.minimum(k - slack, count[source] - 1)
        is_edge = (rank >= 0) & (k < count[target])
        finish = head[copies.begin[source] + np.maximum(rank, 0)] + work[source]
        served = np.where(is_edge, np.maximum(served, finish) + service, served)
        arrival = np.maximum(finish + relaxation.crossing, served + latency)
        last = np.clip(count[target] - 1 - k, 0, None)
        path = arrival + work[target] + tail[copies.begin[target] + last]
        longest = np.where(is_edge, np.maximum(longest, path), longest)
    return longest
