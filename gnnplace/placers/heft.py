"""``heft``: heterogeneous earliest finish time with insertion (Topcuoglu, Hariri and Wu, 2002).

Formulation: ops are taken by descending upward rank (mean op and transfer costs). Each goes to the
device where it finishes first, in the earliest idle gap that is long enough. A tensor arrives at
the producer's finish + latency + bytes / bandwidth; links are never busy, as in the paper.

``heft-contention`` is the same, but each link serves one tensor at a time, in the order of
scheduling, and a tensor is sent only once to a device.

Both count the time that messages cost the devices themselves (``transfer``). A copy made by the
sender, and the overheads of sending, take the sender's earliest gap after the producer, while the
message arrives as if it were sent at once. The overheads of receiving come before the op that
consumes the message.

Deviations: the first op of a colocation class decides for the whole class; pins and kinds exclude
devices; memory is left to the repair step; the sequence that is returned is the better of HEFT's
own (by scheduled start) and those of ``SearchSpace.sequence``.
Complexity: O(n D inputs) and n D searches among gaps (``placers.search.gaps``), near-linear in all.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import (
    Index,
    ahead,
    full_ints,
    full_table,
    inner,
    kernel,
    zero_floats,
)
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.gaps import (
    earliest_gap,
    empty_gaps,
    find_earliest_start,
    take,
)
from gnnplace.placers.search.space import SearchSpace, rank_order, with_own_order
from gnnplace.simulation import (
    BUSY,
    LATENCY,
    Compiled,
    fetch_begin,
    has_link,
    hold_channels,
    receive_time,
    restore_links,
    send_time,
    service_time,
)


@inner(_nrt=False)
def approach(
    compiled: Compiled,
    by_rank: IntArray,
    producer: IntArray,
    finish: FloatArray,
    device: IntArray,
    arrival: FloatArray,
    k: int,
) -> None:
    """Ask memory for what the ops after the ``k``-th will read, each in time for what it says.

    Arguments are the kernel's.
    """
    offset = compiled.input_offset
    inputs = compiled.input_tensor
    if k + 12 < len(by_rank):
        ahead(offset, by_rank[k + 12])
        ahead(compiled.unit_of, by_rank[k + 12])
        ahead(compiled.times, by_rank[k + 12])
    if k + 9 < len(by_rank):
        ahead(inputs, offset[by_rank[k + 9]])
    if k + 6 < len(by_rank):
        for j in range(offset[by_rank[k + 6]], offset[by_rank[k + 6] + 1]):
            ahead(producer, inputs[j])
            ahead(compiled.size, inputs[j])
            ahead(arrival, inputs[j])
    if k + 3 < len(by_rank):
        for j in range(offset[by_rank[k + 3]], offset[by_rank[k + 3] + 1]):
            ahead(finish, producer[inputs[j]])
            ahead(device, producer[inputs[j]])


@kernel
def heft_kernel(
    compiled: Compiled,
    by_rank: IntArray,
    producer: IntArray,
    allowed: BoolArray,
    contention: bool,
) -> tuple[IntArray, FloatArray]:
    """Return the device and scheduled start of each op. [n], [n]

    Args:
        compiled: the compiled problem, of n ops and D devices.
        by_rank: ops in the order they are scheduled, a topological order. [n]
        producer: op that makes each tensor. [T]
        allowed: whether a unit may be on a device. [U, D]
        contention: whether links serve one tensor at a time.
    """
    n, num_devices = compiled.times.shape
    # What is decided: of ops, and of the units whose first op was scheduled.
    device = full_ints(n, -1)
    unit_device = full_ints(len(allowed), -1)
    start = zero_floats(n)
    finish = zero_floats(n)
    links = compiled.links
    costly = links.sends_cost or links.receives_cost
    # When devices have nothing to do, with room for all ops and copies that senders make.
    gaps = empty_gaps(
        num_devices, n + (len(compiled.consumer) if links.sends_cost else 0)
    )
    channel_free = zero_floats(links.num_channels)
    # A tensor is sent once to a device where sending takes time of anybody; then it is known when
    # it arrives.
    sends_once = contention or costly
    arrival = full_table(len(compiled.size) if sends_once else 0, num_devices, np.inf)
    # Like ``channel_free``, but while a device is tried.
    tried = zero_floats(links.num_channels)
    sent = zero_floats(n if links.sends_cost else 0)
    for k in range(n):
        op = by_rank[k]
        approach(compiled, by_rank, producer, finish, device, arrival, k)
        # 1. When its inputs are made: it starts on no device before that.
        unit = compiled.unit_of[op]
        inputs_made = 0.0
        for j in range(compiled.input_offset[op], compiled.input_offset[op + 1]):
            inputs_made = max(inputs_made, finish[producer[compiled.input_tensor[j]]])
        least_finish = np.inf
        best_device = -1
        best_place = 0
        best_slot = 0
        best = np.inf
        best_begin = 0.0
        best_start = 0.0
        # 2. Each device is tried: where it finishes first, it goes.
        for d in range(num_devices):
            if not allowed[unit, d] or (
                unit_device[unit] >= 0 and unit_device[unit] != d
            ):
                continue
            soonest = (
                find_earliest_start(gaps, d, inputs_made, compiled.times[op, d])
                + compiled.times[op, d]
            )
            if best_device >= 0 and soonest >= least_finish:
                continue  # Not even were all inputs there at once.
            # When all inputs are there, were it here; seconds that messages take of this device
            # (before the op) and of the senders.
            ready = 0.0
            extra = 0.0
            sending = 0.0
            target = Index(d)
            for j in range(compiled.input_offset[op], compiled.input_offset[op + 1]):
                tensor = compiled.input_tensor[j]
                p = Index(producer[tensor])
                source = Index(device[p])
                arrives = finish[p]
                if source != target:
                    if not has_link(links, source, target):
                        arrives = np.inf
                    elif sends_once and arrival[tensor, d] < np.inf:
                        arrives = arrival[tensor, d]
                    else:
                        if contention:
                            arrives = fetch_begin(
                                links, tried, sent, p, source, target, arrives
                            )
                        arrives += service_time(
                            links, source, target, compiled.size[tensor]
                        )
                        if contention:
                            hold_channels(links, tried, source, target, arrives)
                        arrives += links.costs[source, target, LATENCY]
                        if links.receives_cost:
                            extra += receive_time(
                                links, source, target, compiled.size[tensor]
                            )
                        if links.sends_cost:
                            sending += send_time(
                                links, source, target, compiled.size[tensor]
                            )
                ready = max(ready, arrives)
            # Its messages held channels on trial only.
            if contention:
                for j in range(
                    compiled.input_offset[op], compiled.input_offset[op + 1]
                ):
                    source = Index(device[producer[compiled.input_tensor[j]]])
                    restore_links(links, tried, channel_free, source, target)
            cost = extra + compiled.times[op, d]
            if best_device >= 0 and ready + cost + sending >= least_finish:
                continue  # The earliest gap is no earlier than the inputs are.
            at, place, slot = earliest_gap(gaps, d, ready, cost)
            if at + cost + sending < least_finish or best_device < 0:
                least_finish = at + cost + sending
                best_device = d
                best_place = place
                best_slot = slot
                best = at + cost
                best_begin = at
                best_start = at + extra
        d = best_device
        target = Index(best_device)
        # 3. Its inputs that are not there yet are sent, and hold channels and senders for good.
        if sends_once:
            for j in range(compiled.input_offset[op], compiled.input_offset[op + 1]):
                tensor = compiled.input_tensor[j]
                p = Index(producer[tensor])
                source = Index(device[p])
                if source == target or arrival[tensor, d] < np.inf:
                    continue
                if not has_link(links, source, target):
                    continue
                end = finish[p]
                if contention:
                    end = fetch_begin(links, channel_free, sent, p, source, target, end)
                end += service_time(links, source, target, compiled.size[tensor])
                arrival[tensor, d] = end + links.costs[source, target, LATENCY]
                if contention:
                    hold_channels(links, channel_free, source, target, end)
                    hold_channels(links, tried, source, target, end)
                if links.sends_cost:
                    cost = send_time(links, source, target, compiled.size[tensor])
                    if links.costs[source, target, BUSY] > 0.0:
                        sent[p] = end
                    # The same types as everywhere else: one signature less to compile.
                    sender = np.int64(source)
                    at, place, slot = earliest_gap(gaps, sender, finish[p], cost)
                    take(gaps, sender, place, slot, at, at + cost)
        # 4. It takes its gap, and its class is where it is.
        device[op] = d
        start[op] = best_start
        finish[op] = best
        unit_device[unit] = d
        take(gaps, d, best_place, best_slot, best_begin, best)
    return device, start


class Heft(Placer):
    """HEFT with insertion, as published."""

    name = "heft"
    contention = False

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        problem = space.problem
        order = rank_order(space)
        device, start = heft_kernel(
            space.compiled,
            order,
            problem.graph.producer,
            problem.unit_allowed,
            self.contention,
        )
        return with_own_order(space, device, start, deadline)


class HeftContention(Heft):
    """HEFT that sees busy links."""

    name = "heft-contention"
    contention = True
