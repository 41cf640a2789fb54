"""``etf``: earliest task first (Hwang, Chow, Anger and Lee, 1989).

Formulation: among all ready ops and all devices the pair with the earliest possible start is
taken next; ties go to the higher upward rank. Tensors take latency + bytes / bandwidth on links
that are never busy. Deviations as in ``heft``: classes, pins, kinds, memory, sequence. With
``favourite`` the kernel is ``m-sct``'s as well (see there).
Complexity: O(n R D), R = ready ops at once; at most 20,000 ops are taken.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.heft import with_own_order
from gnnplace.placers.search_space import SearchSpace
from gnnplace.problem import Problem
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.list_scheduling import mean_upward_rank

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
MOST_OPS = 20_000


@njit(cache=True, boundscheck=False)
def etf_kernel(
    c: Compiled,
    rank: FloatArray,
    allowed: NDArray[np.bool_],
    favourite: IntArray,
    limit: FloatArray,
    unit_bytes: FloatArray,
) -> tuple[IntArray, FloatArray]:
    """Device and scheduled start of each op. [n], [n]

    Args:
        c: the problem.
        rank: upward rank, breaks ties. [n]
        allowed: whether a unit may be on a device. [U, D]
        favourite: the child an op would like to have on its own device, or -1. [n]
        limit: bytes of units a device takes before it counts as full. [D]
        unit_bytes: bytes of each unit. [U]
    """
    n, num_devices = c.times.shape
    device = np.full(n, -1, np.int32)
    unit_device = np.full(len(allowed), -1, np.int32)
    start, finish = np.zeros(n), np.zeros(n)
    free, held = np.zeros(num_devices), np.zeros(num_devices)
    last = np.full(num_devices, -1, np.int32)
    missing = c.num_inputs.copy()
    there = np.zeros((n, num_devices))
    ready = np.empty(n, np.int32)
    num_ready = 0
    for op in range(n):
        if missing[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    for _ in range(n):
        best, best_rank, best_at, best_device, best_wish = np.inf, -1.0, -1, -1, False
        for i in range(num_ready):
            op = ready[i]
            unit = c.unit_of[op]
            for d in range(num_devices):
                if not allowed[unit, d] or (unit_device[unit] >= 0 and unit_device[unit] != d):
                    continue
                full = unit_device[unit] < 0 and held[d] + unit_bytes[unit] > limit[d]
                at = max(there[op, d], free[d]) + (1e12 if full else 0.0)
                wish = last[d] >= 0 and favourite[last[d]] == op
                # A device keeps itself for the favourite child of its last op while that is urgent.
                if last[d] >= 0 and favourite[last[d]] >= 0 and not wish:
                    child = favourite[last[d]]
                    if device[child] < 0 and missing[child] == 0 and there[child, d] <= free[d]:
                        at = max(at, free[d] + c.times[child, d])
                better = at < best or (at == best and wish and not best_wish)
                tie = at == best and wish == best_wish and rank[op] > best_rank
                if better or tie or best_device < 0:
                    best, best_rank, best_at = at, rank[op], i
                    best_device, best_wish = d, wish
        op, d = ready[best_at], best_device
        num_ready -= 1
        ready[best_at] = ready[num_ready]
        unit = c.unit_of[op]
        if unit_device[unit] < 0:
            held[d] += unit_bytes[unit]
        unit_device[unit], device[op], last[d] = d, d, op
        start[op] = max(there[op, d], free[d])
        finish[op] = start[op] + c.times[op, d]
        free[d] = finish[op]
        for j in range(c.op_tensor_offset[op], c.op_tensor_offset[op + 1]):
            tensor = c.op_tensor[j]
            for k in range(c.consumer_offset[tensor], c.consumer_offset[tensor + 1]):
                other = c.consumer[k]
                for target in range(num_devices):
                    at = finish[op]
                    if target != d:
                        if c.channel[d, target] < 0:
                            at = 1e12
                        else:
                            at += c.latency[d, target] + c.size[tensor] / c.bandwidth[d, target]
                    there[other, target] = max(there[other, target], at)
                missing[other] -= 1
                if missing[other] == 0:
                    ready[num_ready] = other
                    num_ready += 1
    return device, start


class Etf(Placer):
    """Earliest task first, as published."""

    name = "etf"

    def supports(self, problem: Problem) -> str | None:
        """At most 20,000 ops: the cost grows with the number of ready ops."""
        if problem.num_ops <= MOST_OPS:
            return None
        return f"{problem.num_ops} ops are more than {MOST_OPS}; use heft, or coarsen"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        problem = space.problem
        device, start = etf_kernel(
            space.compiled,
            mean_upward_rank(problem),
            problem.unit_allowed,
            np.full(problem.num_ops, -1, dtype=np.int32),
            np.full(problem.num_devices, np.inf),
            np.zeros(problem.num_units),
        )
        return with_own_order(space, device, start)
