"""The op that a walk visits next, for walks that follow the schedule instead of a fixed order.

* ``IN_TIME``: the op whose inputs are finished first.
* ``EARLY``: the op that could start first on any device, as in ETF (Hwang et al., 1989). Earliest
  starts never decrease, so the heap has lower bounds: the bound of the first op is recomputed, and
  the op is put back if it is no longer first. No op can start before some device is free. Ops whose
  bounds are not later than that are in a second heap, by rank; the first of them that can start
  then is taken. If ops are put back too often (``REFRESHED`` times an op plus ``SPARE``), the first
  of the second heap is taken.

Ties go to the earlier op in the aim's order. Complexity: O(log m + D inputs) an op, times
``REFRESHED``.

On a large graph ``approach`` prefetches what the walk will read soon (``graph.ahead``). The op
after the visited one is known: the next of a fixed order, or the first of the queue of due ops,
which one of the two entries behind it mostly follows. For these two the addresses of their data are
prefetched, for the next op the data: its inputs, neighbours and consumers, which are scattered in
memory. No decision depends on this. Complexity: O(inputs + flows) an op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray, IntLike, LongArray
from gnnplace.graph import (
    ONE,
    Index,
    ahead,
    empty_ints,
    heap_pop,
    heap_push,
    inner,
    zero_floats,
    zero_ints,
    zero_longs,
)
from gnnplace.policy.decode.walk import Walk
from gnnplace.simulation import compute_arrival, fetch_begin, has_link, receive_time

if TYPE_CHECKING:
    from gnnplace.policy.decode.decoder_state import PartialSchedule

FIXED = 0
IN_TIME = 1
EARLY = 2
REFRESHED = 16
SPARE = 200_000
FAR = 50_000  # ops whose arrays are more than the processor keeps at hand


class ReadyQueue(NamedTuple):
    """Ops that may be next.

    Attributes:
        bound: heap by seconds when the inputs are finished, or a bound of the earliest start. [m]
        waiting: rank of each op in the heap. [m]
        size: number of ops in the heap. [1]
        rank: place of each op in the order. [m]
        offset: Index where each op's consumptions start. [m + 1]
        consumer: ops that consume what an op makes, by ``offset``.
        missing: inputs that are not booked yet. [m]
        ready: latest finish of inputs. [m]
        key: heap of the ranks of ops whose bounds are not later than the first free device. [m]
        due: the same, as whole numbers. [m]
        spare: times that an op may still go back; number of ops in that heap. [2]
    """

    bound: FloatArray
    waiting: IntArray
    size: LongArray
    rank: LongArray
    offset: IntArray
    consumer: IntArray
    missing: IntArray
    ready: FloatArray
    key: FloatArray
    due: IntArray
    spare: LongArray


@inner()
def start_queue(walk: Walk, order: IntArray, wanted: bool) -> ReadyQueue:
    """Return the queue of a walk that goes with time; an empty one if it is not ``wanted``."""
    m = len(walk.unit) if wanted else 0
    offset = zero_ints(m + 1)
    missing = zero_ints(m)
    ready = zero_floats(m)
    rank = zero_longs(m)
    bound = zero_floats(m)
    waiting = zero_ints(m)
    size = zero_longs(1)
    key = zero_floats(m)
    due = zero_ints(m)
    spare = zero_longs(2)
    spare[0] = SPARE
    if not wanted:
        return ReadyQueue(
            bound,
            waiting,
            size,
            rank,
            offset,
            zero_ints(0),
            missing,
            ready,
            key,
            due,
            spare,
        )
    zero = np.int64(0)
    for k in range(m):
        rank[order[k]] = k
    # Consumers by producer, in one array: counted, added up, then filled in (a counting sort).
    for j in walk.before_op:
        offset[j + 1] += 1
    for i in range(m):
        offset[i + 1] += offset[i]
    at = offset[:-1].copy()
    consumer = empty_ints(len(walk.before_op))
    for i in range(m):
        missing[i] = walk.before_offset[i + 1] - walk.before_offset[i]
        # Ops without inputs are ready at once; the heap is by second, then by rank.
        if missing[i] == 0:
            heap_push(bound, waiting, zero, size[0], 0.0, rank[i])
            size[0] += 1
        for k in range(walk.before_offset[i], walk.before_offset[i + 1]):
            consumer[at[walk.before_op[k]]] = i
            at[walk.before_op[k]] += 1
    return ReadyQueue(
        bound, waiting, size, rank, offset, consumer, missing, ready, key, due, spare
    )


@inner(_nrt=False)
def put_back(queue: ReadyQueue, bound: float, rank: IntLike) -> None:
    """Add the op of that rank to the heap."""
    heap_push(queue.bound, queue.waiting, np.int64(0), queue.size[0], bound, rank)
    queue.size[0] += 1


@inner(_nrt=False)
def release(queue: ReadyQueue, i: int, finish: float) -> None:
    """Take note that op ``i`` finishes then; ops without missing inputs join the heap."""
    for k in range(queue.offset[i], queue.offset[i + 1]):
        consumer = queue.consumer[k]
        queue.ready[consumer] = max(queue.ready[consumer], finish)
        queue.missing[consumer] -= 1
        if queue.missing[consumer] == 0:
            put_back(queue, queue.ready[consumer], queue.rank[consumer])


@inner(_nrt=False)
def earliest_start(walk: Walk, state: PartialSchedule, i: int) -> float:
    """Return the seconds at which op ``i`` could start on the device where that is first."""
    u = walk.unit[i]
    best = np.inf
    links = walk.links
    booked = state.booked
    for d in range(len(booked.free)):
        if state.device[u] >= 0 and state.device[u] != d:
            continue
        if not np.isfinite(walk.unit_time[u, d]) or booked.free[d] >= best:
            continue
        ready = booked.free[d]
        extra = 0.0
        for k in range(walk.before_offset[i], walk.before_offset[i + 1]):
            j = walk.before_op[k]
            tensor = walk.before_tensor[k]
            e = Index(state.device[walk.unit[j]])
            at = booked.finish[j]
            target = Index(d)
            if e != target:
                if booked.arrival[tensor, d] >= 0.0:
                    at = max(at, booked.arrival[tensor, d])
                elif has_link(links, e, target):
                    size = walk.before_size[k]
                    at = fetch_begin(
                        links, booked.channel_free, booked.sent, Index(j), e, target, at
                    )
                    at = compute_arrival(links, e, target, size, at)
                    if links.receives_cost:
                        extra += receive_time(links, e, target, size)
            ready = max(ready, at)
        best = min(best, ready + extra)
    return best if best < np.inf else 0.0


@inner(_nrt=False)
def take_due(
    walk: Walk, state: PartialSchedule, queue: ReadyQueue, order: IntArray
) -> int:
    """Return the first op by rank that starts as soon as a device is free; -1 if there is none."""
    soonest = np.inf
    zero = np.int64(0)
    for free in state.booked.free:
        soonest = min(soonest, free)
    while queue.size[0] > 0 and queue.bound[0] <= soonest:
        rank = heap_pop(queue.bound, queue.waiting, zero, queue.size[0])
        queue.size[0] -= 1
        heap_push(
            queue.key, queue.due, zero, queue.spare[1], float(rank), np.int64(rank)
        )
        queue.spare[1] += 1
    while queue.spare[1] > 0:
        rank = heap_pop(queue.key, queue.due, zero, queue.spare[1])
        queue.spare[1] -= 1
        start = earliest_start(walk, state, order[rank])
        if start <= soonest or queue.spare[0] <= 0:
            return order[rank]
        put_back(queue, start, np.int64(rank))
        queue.spare[0] -= 1
    return -1


@inner(_nrt=False)
def next_op(
    walk: Walk, state: PartialSchedule, queue: ReadyQueue, order: IntArray, rule: int
) -> int:
    """Take the next op by ``rule``, IN_TIME or EARLY."""
    queue.spare[0] += REFRESHED
    if rule == EARLY:
        due = take_due(walk, state, queue, order)
        if due >= 0:
            return due
    while True:
        bound = queue.bound[0]
        rank = heap_pop(queue.bound, queue.waiting, np.int64(0), queue.size[0])
        queue.size[0] -= 1
        if rule == IN_TIME or queue.size[0] == 0 or queue.spare[0] <= 0:
            return order[rank]
        start = earliest_start(walk, state, order[rank])
        first = queue.bound[0]
        if (
            start <= bound
            or start < first
            or (start == first and rank <= queue.waiting[0])
        ):
            return order[rank]
        put_back(queue, start, np.int64(rank))
        queue.spare[0] -= 1


@inner(_nrt=False)
def approach(
    walk: Walk,
    state: PartialSchedule,
    queue: ReadyQueue,
    order: IntArray,
    k: int,
    by_time: bool,
) -> None:
    """Ask for what the ops after the ``k``-th visited will need; arguments as of ``decode``."""
    if by_time:
        if queue.spare[1] > 2:
            for place in range(1, 3):
                approach_places(walk, queue, order[queue.due[place]], by_time)
            approach_values(walk, state, queue, order[queue.due[0]], by_time)
    elif k + 3 < len(order):
        approach_places(walk, queue, order[k + 3], by_time)
        approach_values(walk, state, queue, order[k + 1], by_time)


@inner(_nrt=False)
def approach_places(walk: Walk, queue: ReadyQueue, i: int, by_time: bool) -> None:
    """Ask for an op's own rows, and for where those of its neighbours are."""
    i = Index(i)
    u = Index(walk.unit[i])
    ahead(walk.before_offset, i)
    ahead(walk.time, i)
    ahead(walk.unit_time, u)
    ahead(walk.flow_offset, u)
    ahead(walk.tail_seconds, i)
    ahead(walk.unit_work, u)
    ahead(walk.unit_state, u)
    ahead(walk.unit_peak, u)
    if by_time:
        ahead(queue.offset, i)


@inner(_nrt=False)
def approach_values(
    walk: Walk, state: PartialSchedule, queue: ReadyQueue, i: int, by_time: bool
) -> None:
    """Ask for what is known of an op's inputs, neighbours and consumers."""
    i = Index(i)
    u = Index(walk.unit[i])
    ahead(state.booked.finish, i)
    ahead(state.device, u)
    for k in range(Index(walk.before_offset[i]), Index(walk.before_offset[i + ONE])):
        ahead(state.booked.finish, walk.before_op[k])
        ahead(state.booked.arrival, walk.before_tensor[k])
        ahead(state.device, walk.unit[Index(walk.before_op[k])])
        ahead(walk.before_size, k)
    for k in range(Index(walk.flow_offset[u]), Index(walk.flow_offset[u + ONE])):
        ahead(state.device, walk.flow_unit[k])
        ahead(walk.flow_in, k)
        ahead(walk.flow_out, k)
    if by_time:
        for k in range(Index(queue.offset[i]), Index(queue.offset[i + ONE])):
            ahead(queue.ready, queue.consumer[k])
            ahead(queue.missing, queue.consumer[k])
            ahead(queue.rank, queue.consumer[k])
