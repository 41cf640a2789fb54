"""The cost of a stage of a contiguous split on each sort of devices.

A stage does the work of its units and sends or receives every flow that crosses its border
(``add_unit``), over its device's cheapest link. ``segment_costs`` prices all stages of one order,
with every flow sent once. ``stage_costs`` and ``sum_own_load`` also count the sends to each later
stage, once these stages are known; ``true_largest`` counts everything. Complexity: O(pins) a stage,
or a unit that is added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import (
    full_ints,
    greatest,
    inner,
    kernel,
    zero_flags,
    zero_floats,
    zero_ints,
)
from gnnplace.placers.throughput.load import Flows
from gnnplace.simulation import with_messages


class Sorts(NamedTuple):
    """Devices that look alike to one stage.

    Attributes:
        of: sort of each device. [D]
        work: seconds of each unit on each sort. [U, T]
        memory: bytes. [T]
        latency: seconds of the cheapest (or dearest) link of any device of the sort. [T]
        pace: seconds a byte of the fastest (or slowest) link. [T]
        counts: devices of each sort. [T]
        equal: whether all links are equal, so that these costs are the true ones.
    """

    of: IntArray
    work: FloatArray
    memory: FloatArray
    latency: FloatArray
    pace: FloatArray
    counts: IntArray
    equal: bool


def list_device_sorts(flows: Flows, *, dear: bool = False) -> Sorts:
    """Return the sorts of the devices of a problem.

    Args:
        flows: the units, and what travels between them.
        dear: at the price of the dearest link of each device instead of the cheapest.
    """
    latency, pace = (
        _price(matrix, np.isfinite(flows.latency), dear)
        for matrix in (flows.latency, flows.pace)
    )
    keys: dict[tuple[bytes, float, float, float], int] = {}
    of = np.array(
        [
            keys.setdefault(
                (flows.work[:, d].tobytes(), flows.memory[d], latency[d], pace[d]),
                len(keys),
            )
            for d in range(len(flows.memory))
        ],
        dtype=np.int32,
    )
    firsts = [int(np.argmax(of == sort)) for sort in range(len(keys))]
    first = np.array(firsts)
    apart = ~np.eye(len(flows.memory), dtype=bool)
    same = [
        len(np.unique(matrix[apart])) <= 1 for matrix in (flows.latency, flows.pace)
    ]
    return Sorts(
        of=of,
        work=np.ascontiguousarray(flows.work[:, first]),
        memory=flows.memory[first],
        latency=latency[first],
        pace=pace[first],
        counts=np.bincount(of).astype(np.int32),
        equal=all(same) and bool(np.isfinite(flows.latency).all()),
    )


def _price(matrix: FloatArray, linked: BoolArray, dear: bool) -> FloatArray:
    """Return the least or largest entry of each row over the links to other devices, 0 without any.
    [D]
    """
    apart = linked & ~np.eye(len(matrix), dtype=bool)
    worst, pick = (-np.inf, np.max) if dear else (np.inf, np.min)
    prices = pick(np.where(apart, matrix, worst), axis=1)
    return np.where(np.isfinite(prices), prices, 0.0)


@inner()
def crosses(made: bool, read: int, readers: int) -> int:
    """Return 1 if a flow crosses a stage's border, made inside or not, with ``read`` readers
    inside.
    """
    if made:
        return 1 if read < readers else 0
    return 1 if read > 0 else 0


@inner()
def add_unit(
    flows: Flows, unit: int, sign: int, made: BoolArray, read: IntArray
) -> tuple[float, float]:
    """Add a unit to a stage, or take it out (``sign`` -1).

    Returns:
        By how much the number and the bytes of the tensors that cross its border change.
    """
    count = 0.0
    size = 0.0
    for j in range(flows.unit_offset[unit], flows.unit_offset[unit + 1]):
        k = flows.unit_flow[j]
        readers = flows.offset[k + 1] - flows.offset[k]
        crossed = crosses(made[k], read[k], readers)
        if flows.producer[k] == unit:
            made[k] = sign > 0
        else:
            read[k] += sign
        change = crosses(made[k], read[k], readers) - crossed
        count += change * flows.tensors[k]
        size += change * flows.size[k]
    return count, size


@kernel
def segment_costs(
    flows: Flows, sorts: Sorts, order: IntArray, block: IntArray, upper: float
) -> FloatArray:
    """Return the seconds of blocks i..j-1 as one stage on each sort; inf above ``upper``. [T, B +
    1, B + 1]
    """
    num_units = len(order)
    num_sorts = len(sorts.counts)
    num_blocks = block[num_units - 1] + 1
    cost = np.full((num_sorts, num_blocks + 1, num_blocks + 1), np.inf)
    for t in range(num_sorts):
        for i in range(num_blocks + 1):
            cost[t, i, i] = 0.0
    for begin in range(num_units):
        if begin > 0 and block[begin] == block[begin - 1]:
            continue
        made_inside = zero_flags(len(flows.producer))
        read = zero_ints(len(flows.producer))
        work = zero_floats(num_sorts)
        state = 0.0
        count = 0.0
        size = 0.0
        for p in range(begin, num_units):
            change = add_unit(flows, order[p], 1, made_inside, read)
            count = count + change[0]
            size = size + change[1]
            state += flows.state[order[p]]
            least_work = np.inf
            for t in range(num_sorts):
                work[t] += sorts.work[order[p], t]
                least_work = min(least_work, work[t])
            if least_work > upper:
                break
            if p + 1 < num_units and block[p + 1] == block[p]:
                continue
            for t in range(num_sorts):
                seconds = with_messages(
                    work[t], count, size, sorts.latency[t], sorts.pace[t]
                )
                if state <= sorts.memory[t] and seconds <= upper:
                    cost[t, block[begin], block[p] + 1] = seconds
    return cost


@inner()
def stage_costs(
    flows: Flows,
    sorts: Sorts,
    order: IntArray,
    block: IntArray,
    stage: IntArray,
    end: int,
    own: int,
) -> tuple[FloatArray, FloatArray]:
    """Return the tensors and bytes that cross the border of blocks i..end-1.

    Sends count once for each later stage with a reader, and once for all earlier ones.

    Returns:
        Number and bytes for each first block i. [end] each
    """
    made_inside = zero_flags(len(flows.producer))
    read = zero_ints(len(flows.producer))
    counts = zero_floats(end)
    sizes = zero_floats(end)
    last_flow = full_ints(own + 1, -1)
    count = 0.0
    size = 0.0
    last = len(order) - 1
    while last >= 0 and block[last] >= end:
        last -= 1
    for p in range(last, -1, -1):
        unit = order[p]
        change = add_unit(flows, unit, 1, made_inside, read)
        count = count + change[0]
        size = size + change[1]
        for j in range(flows.unit_offset[unit], flows.unit_offset[unit + 1]):
            k = flows.unit_flow[j]
            if flows.producer[k] != unit:
                continue
            later = 0
            for r in range(flows.offset[k], flows.offset[k + 1]):
                at = stage[flows.reader[r]]
                if 0 <= at < own and last_flow[at] != k:
                    last_flow[at] = k
                    later += 1
            if later > 1:
                count += (later - 1) * flows.tensors[k]
                size += (later - 1) * flows.size[k]
        counts[block[p]] = count
        sizes[block[p]] = size
    return counts, sizes


@inner()
def true_largest(
    flows: Flows, sorts: Sorts, stage: IntArray, stage_sort: IntArray
) -> float:
    """Return the largest load of a whole split, every stage at its sort's link costs."""
    load = zero_floats(len(stage_sort))
    for u in range(len(stage)):
        load[stage[u]] += sorts.work[u, stage_sort[stage[u]]]
    last_flow = full_ints(len(stage_sort), -1)
    for k in range(len(flows.producer)):
        source = stage[flows.producer[k]]
        last_flow[source] = k
        for r in range(flows.offset[k], flows.offset[k + 1]):
            target = stage[flows.reader[r]]
            if last_flow[target] != k:
                last_flow[target] = k
                for end in (source, target):
                    t = stage_sort[end]
                    latency = sorts.latency[t]
                    pace = sorts.pace[t]
                    load[end] += with_messages(
                        0.0, flows.tensors[k], flows.size[k], latency, pace
                    )
    return greatest(load)


@inner()
def sum_own_load(
    flows: Flows, sorts: Sorts, stage: IntArray, own: int, place: int
) -> float:
    """Load of one stage whose later stages are known; all earlier ones count once."""
    load = 0.0
    for u in range(len(stage)):
        if stage[u] == own:
            load += sorts.work[u, place]
    last_flow = full_ints(own + 2, -1)
    for k in range(len(flows.producer)):
        source = stage[flows.producer[k]]
        number = 0
        for r in range(flows.offset[k], flows.offset[k + 1]):
            target = stage[flows.reader[r]]
            if source == own and target != own:
                slot = own + 1 if target < 0 else target
                if last_flow[slot] != k:
                    last_flow[slot] = k
                    number += 1
            elif source != own and target == own:
                number = 1
        load += number * with_messages(
            0.0,
            flows.tensors[k],
            flows.size[k],
            sorts.latency[place],
            sorts.pace[place],
        )
    return load
