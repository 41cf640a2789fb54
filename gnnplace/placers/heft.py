"""``heft``: heterogeneous earliest finish time with insertion (Topcuoglu, Hariri and Wu, 2002).

Formulation: ops by descending upward rank (mean op and transfer costs); each goes to the device
where it finishes first, in the earliest gap that holds it. A tensor is there at the producer's
finish + latency + bytes / bandwidth: links are never busy (that is the paper's model).

``heft-contention`` is the same with links that serve one tensor at a time, first come, first served
in the order of scheduling, each tensor sent once to a device; senders of ``sender_busy`` links are
not held up in the estimate.

Deviations: the first op of a colocation class decides for the whole class; pins and kinds mask
devices; memory is left to the repair step; the sequence handed back is the better of HEFT's own
(by scheduled start) and those of ``SearchSpace.sequence``.
Complexity: O(n D (inputs + log n)) and the shifting of gaps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.jit import inner, kernel
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search_space import SearchSpace
from gnnplace.simulation.arrays import copy_rows, greatest
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.list_scheduling import mean_upward_rank

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]


@inner()
def earliest_gap(
    begins: FloatArray, ends: FloatArray, count: int, ready: float, cost: float
) -> tuple[float, int]:
    """Start of the earliest gap of length ``cost`` from ``ready`` on, and its index.

    ``begins`` and ``ends`` hold the ``count`` slots of a device in order of time.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if ends[middle] <= ready:
            low = middle + 1
        else:
            high = middle
    at = max(ready, ends[low - 1]) if low > 0 else ready
    for k in range(low, count):
        if at + cost <= begins[k]:
            return at, k
        at = max(at, ends[k])
    return at, count


@kernel
def heft_kernel(
    c: Compiled,
    by_rank: IntArray,
    producer: IntArray,
    allowed: NDArray[np.bool_],
    contention: bool,
) -> tuple[IntArray, FloatArray]:
    """Device and scheduled start of each op. [n], [n]

    Args:
        c: the problem.
        by_rank: ops in the order they are scheduled, a topological order. [n]
        producer: op that makes each tensor. [T]
        allowed: whether a unit may be on a device. [U, D]
        contention: whether links serve one tensor at a time.
    """
    n, num_devices = c.times.shape
    device = np.full(n, -1, np.int32)
    unit_device = np.full(len(allowed), -1, np.int32)
    start, finish = np.zeros(n), np.zeros(n)
    begins = np.empty((num_devices, 16))
    ends = np.empty((num_devices, 16))
    count = np.zeros(num_devices, np.int64)
    channel_free = np.zeros(c.num_channels + 1)
    arrival = np.full((len(c.size) if contention else 0, num_devices), np.inf)
    tried = np.zeros(c.num_channels + 1)  # As ``channel_free`` but while a device is tried.
    for op in by_rank:
        unit = c.unit_of[op]
        best, best_start, best_slot, best_device = np.inf, 0.0, 0, -1
        for d in range(num_devices):
            if not allowed[unit, d] or (unit_device[unit] >= 0 and unit_device[unit] != d):
                continue
            ready = 0.0
            for j in range(c.input_offset[op], c.input_offset[op + 1]):
                tensor = c.input_tensor[j]
                p = producer[tensor]
                source = device[p]
                there = finish[p]
                if source != d:
                    if c.channel[source, d] < 0:
                        there = np.inf
                    elif contention and arrival[tensor, d] < np.inf:
                        there = arrival[tensor, d]
                    else:
                        if contention:
                            there = max(there, tried[c.channel[source, d]])
                        there += c.size[tensor] / c.bandwidth[source, d]
                        if contention:
                            tried[c.channel[source, d]] = there
                        there += c.latency[source, d]
                ready = max(ready, there)
            if contention:
                for j in range(c.input_offset[op], c.input_offset[op + 1]):
                    channel = c.channel[device[producer[c.input_tensor[j]]], d]
                    if channel >= 0:
                        tried[channel] = channel_free[channel]
            at, slot = earliest_gap(begins[d], ends[d], count[d], ready, c.times[op, d])
            if at + c.times[op, d] < best or best_device < 0:
                best, best_start, best_slot = at + c.times[op, d], at, slot
                best_device = d
        d = best_device
        if contention:
            for j in range(c.input_offset[op], c.input_offset[op + 1]):
                tensor = c.input_tensor[j]
                source = device[producer[tensor]]
                if source != d and c.channel[source, d] >= 0 and arrival[tensor, d] == np.inf:
                    channel = c.channel[source, d]
                    begin = max(finish[producer[tensor]], channel_free[channel])
                    channel_free[channel] = begin + c.size[tensor] / c.bandwidth[source, d]
                    tried[channel] = channel_free[channel]
                    arrival[tensor, d] = channel_free[channel] + c.latency[source, d]
        device[op], start[op], finish[op] = d, best_start, best
        unit_device[unit] = d
        if greatest(count) + 1 >= begins.shape[1]:
            wider = np.empty((num_devices, 2 * begins.shape[1]))
            copy_rows(wider, begins)
            begins = wider
            wider = np.empty((num_devices, 2 * ends.shape[1]))
            copy_rows(wider, ends)
            ends = wider
        for k in range(count[d], best_slot, -1):
            begins[d, k], ends[d, k] = begins[d, k - 1], ends[d, k - 1]
        begins[d, best_slot], ends[d, best_slot] = best_start, best
        count[d] += 1
    return device, start


def rank_order(space: SearchSpace) -> IntArray:
    """Ops by descending upward rank; topological position breaks ties. [n]"""
    rank = mean_upward_rank(space.problem)
    return np.lexsort((space.problem.graph.position, -rank)).astype(np.int32)


class Heft(Placer):
    """HEFT with insertion, as published."""

    name = "heft"
    contention = False

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        problem = space.problem
        order = rank_order(space)
        device, start = heft_kernel(
            space.compiled, order, problem.graph.producer, problem.unit_allowed, self.contention
        )
        return with_own_order(space, device, start)


class HeftContention(Heft):
    """HEFT that sees busy links."""

    name = "heft-contention"
    contention = True


def with_own_order(space: SearchSpace, device: IntArray, start: FloatArray) -> Found:
    """The devices with the better of the scheduler's own order and list-scheduled ones."""
    own = np.lexsort((space.problem.graph.position, start)).astype(np.int32)
    score, order = space.sequence(device)
    return Found(device, own if space.score(device, own) < score else order)
