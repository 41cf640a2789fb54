"""A pipeline's list schedule and its step time, in one pass over the actions.

A rank that is free takes what is ready: of the first micro-batch of every chunk and kind that waits
there, backward first, then forward unless as many micro-batches are in flight on that chunk as its
limit says, then gradients of weights; the older micro-batch first, then the later chunk. `late`
lets a chunk's forward passes come before backward ones, and `weights` its weight gradients before
forward ones.

Messages between two ranks go one after the other each way, so the time is the simulator's for the
same orders where nothing blocks (tests/plans/order/test_orders.py). O(A log A) for A actions.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numba
import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, LongArray

F, I, W = range(3)  # noqa: E741 (the names of the passes)


class Line(NamedTuple):
    """A pipeline as arrays.

    Attributes:
        rank: of each chunk. [C]
        seconds: of F, I and W of each chunk; I is both where W is not apart. [C, 3]
        sent: of a message from each chunk to the next. [C]
        microbatches: M, the number of micro-batches of a step.
        apart: whether I and W are.
    """

    rank: LongArray
    seconds: FloatArray
    sent: FloatArray
    microbatches: int
    apart: bool


@numba.njit(cache=True)
def listed(
    line: Line, limit: LongArray, late: BoolArray, weights: BoolArray, ends: FloatArray
) -> tuple[float, LongArray]:
    """Step time, and of every action in order of its start chunk, kind and micro-batch.

    Args:
        line: the pipeline that is ordered: ranks, seconds, messages.
        limit: micro-batches that each chunk may have in flight. [C]
        late: chunks whose forward passes come before backward ones. [C]
        weights: chunks whose weight gradients come before forward passes. [C]
        ends: seconds of each rank after its last pass. [P]

    Returns:
        Seconds, and actions. [A, 3]
    """
    chunks, ranks, count = len(line.rank), len(ends), line.microbatches
    kinds = 3 if line.apart else 2
    arrival = np.full((chunks, 3, count), np.inf)
    arrival[0, F, :] = 0.0
    after = np.zeros((chunks, 3), dtype=np.int64)  # the next micro-batch of each kind
    flying = np.zeros(chunks, dtype=np.int64)
    free, channel = np.zeros(ranks), np.zeros((ranks, ranks))
    made = np.zeros((chunks * kinds * count, 3), dtype=np.int64)
    events = [(0.0, np.int64(line.rank[0]))]
    done = 0
    while len(events) > 0:
        now, p = heapq.heappop(events)
        if free[p] > now:
            continue
        c, k = _taken(line, p, now, arrival, after, flying, limit, late, weights)
        if c < 0:
            continue
        m = after[c, k]
        after[c, k] += 1
        made[done, 0], made[done, 1], made[done, 2] = c, k, m
        done += 1
        end = now + line.seconds[c, k]
        free[p] = end
        heapq.heappush(events, (end, np.int64(p)))
        if k == F:
            flying[c] += 1
        elif k == W or not line.apart:
            flying[c] -= 1
        to = _announced(line, arrival, channel, c, k, m, end)
        if to >= 0:
            heapq.heappush(events, (arrival[to, k, m], np.int64(line.rank[to])))
    return (free + ends).max(), made[:done]


@numba.njit(cache=True)
def _taken(
    line: Line,
    p: int,
    now: float,
    arrival: FloatArray,
    after: LongArray,
    flying: LongArray,
    limit: LongArray,
    late: BoolArray,
    weights: BoolArray,
) -> tuple[int, int]:
    """Chunk and kind of what a free rank runs next; -1 if nothing is ready."""
    best_c, best_k, best_u, best_m = -1, -1, 9, 0
    for c in range(len(line.rank) - 1, -1, -1):
        if line.rank[c] != p:
            continue
        for k in range(3):
            m = after[c, k]
            if m >= line.microbatches or arrival[c, k, m] > now:
                continue
            if k == F and flying[c] >= limit[c]:
                continue
            if k == I:
                urgency = 1
            elif k == F:
                urgency = 0 if late[c] else 3
            else:
                urgency = 2 if weights[c] else 4
            if urgency < best_u or (urgency == best_u and m < best_m):
                best_c, best_k, best_u, best_m = c, k, urgency, m
    return best_c, best_k


@numba.njit(cache=True)
def _announced(
    line: Line, arrival: FloatArray, channel: FloatArray, c: int, k: int, m: int, end: float
) -> int:
    """Notes when what follows a pass may run; the chunk that it is sent to, or -1."""
    last = len(line.rank) - 1
    if k == F and c == last:
        arrival[c, I, m] = end
    elif k == I and line.apart:
        arrival[c, W, m] = end
    to = c + 1 if k == F else c - 1
    if k == W or to < 0 or to > last:
        return -1
    p, q, there = line.rank[c], line.rank[to], end
    if p != q:
        there = max(end, channel[p, q]) + line.sent[min(c, to)]
        channel[p, q] = there
    arrival[to, k, m] = there
    return to


@numba.njit(cache=True)
def replayed(line: Line, rows: LongArray, length: LongArray, ends: FloatArray) -> float:
    """Step time of given orders; inf where they wait for each other for ever.

    Args:
        line: the pipeline that is ordered: ranks, seconds, messages.
        rows: chunk, kind and micro-batch of every rank's actions in order. [P, actions, 3]
        length: actions of every rank. [P]
        ends: seconds of each rank after its last pass. [P]
    """
    chunks, ranks, count = len(line.rank), len(ends), line.microbatches
    arrival = np.full((chunks, 3, count), np.inf)
    arrival[0, F, :] = 0.0
    free, channel = np.zeros(ranks), np.zeros((ranks, ranks))
    place = np.zeros(ranks, dtype=np.int64)
    moved = True
    while moved:
        moved = False
        for p in range(ranks):
            while place[p] < length[p]:
                c, k, m = rows[p, place[p]]
                if arrival[c, k, m] == np.inf:
                    break
                end = max(free[p], arrival[c, k, m]) + line.seconds[c, k]
                free[p], moved = end, True
                place[p] += 1
                _announced(line, arrival, channel, c, k, m, end)
    return (free + ends).max() if (place == length).all() else np.inf
