"""``etf``: earliest task first (Hwang, Chow, Anger and Lee, 1989).

Formulation: of all pairs of a ready op and a device, the one with the earliest possible start is
scheduled next; ties go to the higher upward rank, then to the device listed first. A tensor takes
latency + bytes / bandwidth; links are never busy. Deviations are those of ``heft`` (colocation
classes, pins, kinds, memory, the sequence that is returned). The time that a message costs its
sender and receiver (``transfer``) is booked when its consumer is placed.

Each device keeps two heaps of ready ops. One has the ops whose inputs arrive before the device is
free, which could all start then, ordered by rank. The other has the rest, ordered by the arrival of
their inputs. An op is in one heap of every device that may run it; once it is scheduled, its other
entries are dropped when they come up.
Complexity: O(n D log n + edges D); at most 200,000 ops are taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import (
    Index,
    empty_int_table,
    empty_ints,
    empty_table,
    full_ints,
    heap_pop,
    heap_push,
    inner,
    kernel,
    zero_flag_table,
    zero_floats,
    zero_longs,
    zero_table,
)
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.space import SearchSpace, rank_order, with_own_order
from gnnplace.problem import Problem
from gnnplace.simulation import Compiled, has_link, pay_overheads, seconds_between

MOST_OPS = 200_000
# Seconds until a tensor is there without a link, or a full device is free: after everything else,
# but finite, so that it can be taken where nothing else is left.
NEVER = 1e12


@inner(_nrt=False)
def still_open(
    compiled: Compiled, device: IntArray, unit_device: IntArray, op: int, d: int
) -> bool:
    """Return whether a ready op that a heap of device ``d`` holds may still go there."""
    fixed = unit_device[compiled.unit_of[op]]
    return device[op] < 0 and (fixed < 0 or fixed == d)


class WaitingOps(NamedTuple):
    """The inputs that ops still wait for. Updated as ops are scheduled.

    Attributes:
        arrival: Seconds when all inputs that are made would be on each device. [n, D]
        missing: Inputs that are not made yet, of each op. [n]
        ready: Ops that wait for nothing else, in the order in which they got ready. [n]
    """

    arrival: FloatArray
    missing: IntArray
    ready: IntArray


@inner(_nrt=False)
def note_arrivals(
    compiled: Compiled,
    waiting: WaitingOps,
    op: int,
    d: int,
    finish: float,
    num_ready: int,
) -> int:
    """Note when the tensors of an op on device ``d`` would be on each device.

    Ops that waited for nothing else are put behind the ``num_ready`` that are ready; returns how
    many are ready then.
    """
    arrival, missing, ready = waiting
    for i in range(compiled.flow_offset[op], compiled.flow_offset[op + 1]):
        consumer = compiled.flow_op[i]
        for target in range(arrival.shape[1]):
            at = finish
            links = compiled.links
            if target != d:
                if not has_link(links, Index(d), Index(target)):
                    at = NEVER
                else:
                    at += seconds_between(
                        links, Index(d), Index(target), compiled.flow_size[i]
                    )
            arrival[consumer, target] = max(arrival[consumer, target], at)
        missing[consumer] -= 1
        if missing[consumer] == 0:
            ready[num_ready] = consumer
            num_ready += 1
    return num_ready


@kernel
def etf_kernel(
    compiled: Compiled, by_rank: IntArray, allowed: BoolArray
) -> tuple[IntArray, FloatArray]:
    """Return the device and scheduled start of each op. [n], [n]

    Args:
        compiled: the compiled problem, of n ops and D devices.
        by_rank: all ops, the highest upward rank first. [n]
        allowed: whether a unit may be on a device. [U, D]
    """
    n, num_devices = compiled.times.shape
    device = full_ints(n, -1)
    unit_device = full_ints(len(allowed), -1)
    start = zero_floats(n)
    finish = zero_floats(n)
    free = zero_floats(num_devices)
    # Of ops: inputs that are not made yet; seconds when all others are on each device.
    missing = compiled.num_inputs.copy()
    arrival = zero_table(n, num_devices)
    links = compiled.links
    num_tensors = len(compiled.size)
    costly = links.sends_cost or links.receives_cost
    made_on = empty_ints(num_tensors)
    sent_to = zero_flag_table(num_tensors if costly else 0, num_devices)
    place = empty_ints(n)
    for k in range(n):
        place[by_rank[k]] = k
    # Heaps of places in ``by_rank``: what could start at once, by place; what comes, by time.
    startable = empty_table(num_devices, n)
    now_at = empty_int_table(num_devices, n)
    later = empty_table(num_devices, n)
    later_at = empty_int_table(num_devices, n)
    num_now = zero_longs(num_devices)
    num_later = zero_longs(num_devices)
    ready = empty_ints(n)
    num_ready = 0
    waiting = WaitingOps(arrival, missing, ready)
    zero = np.int64(0)  # A 0 is a type of its own to the compiler.
    for op in range(n):
        if missing[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    for _ in range(n):
        # 1. Ops that got ready are told to all devices that they may go to.
        for i in range(num_ready):
            op = ready[i]
            for d in range(num_devices):
                if allowed[compiled.unit_of[op], d]:
                    rank = np.int64(place[op])
                    heap_push(
                        later[d], later_at[d], zero, num_later[d], arrival[op, d], rank
                    )
                    num_later[d] += 1
        # 2. Each device's next: what is there when it is free, by rank, else what comes first. Ops
        # that went elsewhere meanwhile are dropped when they are met.
        best = np.inf
        best_place = n
        best_device = -1
        for d in range(num_devices):
            while num_later[d] > 0:
                op = by_rank[later_at[d, 0]]
                open_here = still_open(compiled, device, unit_device, op, d)
                if open_here and later[d, 0] > free[d]:
                    break
                k = heap_pop(later[d], later_at[d], zero, num_later[d])
                num_later[d] -= 1
                if open_here:
                    heap_push(
                        startable[d], now_at[d], zero, num_now[d], float(k), np.int64(k)
                    )
                    num_now[d] += 1
            while num_now[d] > 0:
                if still_open(compiled, device, unit_device, by_rank[now_at[d, 0]], d):
                    break
                heap_pop(startable[d], now_at[d], zero, num_now[d])
                num_now[d] -= 1
            at = np.inf
            k = n
            if num_now[d] > 0:
                at = free[d]
                k = now_at[d, 0]
            elif num_later[d] > 0:
                at = later[d, 0]
                k = later_at[d, 0]
            if at < best or (at == best and k < best_place):
                best = at
                best_place = k
                best_device = d
        # 3. The earliest of them all is placed, with its class; it pays for its messages.
        op = int(by_rank[best_place])
        d = best_device
        unit_device[compiled.unit_of[op]] = d
        device[op] = d
        if costly:
            inputs = compiled.input_tensor[
                compiled.input_offset[op] : compiled.input_offset[op + 1]
            ]
            best = max(
                best,
                free[d]
                + pay_overheads(
                    links, free, sent_to, inputs, made_on, compiled.size, d
                ),
            )
            for i in range(
                compiled.op_tensor_offset[op], compiled.op_tensor_offset[op + 1]
            ):
                made_on[compiled.op_tensor[i]] = d
        start[op] = best
        finish[op] = free[d] = best + compiled.times[op, d]
        # 4. When its tensors would be on each device; ops that waited for nothing else are ready.
        num_ready = note_arrivals(compiled, waiting, op, d, finish[op], 0)
    return device, start


class Etf(Placer):
    """Earliest task first, as published."""

    name = "etf"

    def supports(self, problem: Problem) -> str | None:
        """Refuse more than 200,000 ops."""
        if problem.num_ops <= MOST_OPS:
            return None
        return f"{problem.num_ops} ops are more than {MOST_OPS}; use heft, or coarsen"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        order = rank_order(space)
        device, start = etf_kernel(space.compiled, order, space.problem.unit_allowed)
        return with_own_order(space, device, start)
