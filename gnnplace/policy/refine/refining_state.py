"""The state of a pass of refinement: tables of units, the previous placement, the schedule so far.

``refining`` describes a pass, which decides units anew in the order of the previous placement and
books their ops. ``read_previous`` reads the placement, ``start_pass`` makes an empty schedule,
``settle`` decides a unit, and ``book`` appends an op.

Complexity: O(inputs) for a booking, O(n + units) for every other function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import TINY, BoolArray, FloatArray, IntArray, SingleArray
from gnnplace.graph import (
    ONE,
    Index,
    ascending,
    empty_floats,
    empty_ints,
    full_ints,
    inner,
    kernel,
    zero_floats,
    zero_ints,
)
from gnnplace.placers import Neighbourhood
from gnnplace.policy.decode.decoder_state import (
    Booked,
    InputTensor,
    bring,
    make_empty_schedule,
)
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.simulation import Compiled, find_times, list_schedule, peak_memory

SOFT = 0.02  # slack over the step time at which criticality is 1/e


class RefiningUnits(NamedTuple):
    """Tables of a problem's units, for passes. U units, D devices, E pairs of neighbours.

    Attributes:
        allowed: Whether a unit may be on a device. [U, D]
        time: Seconds of all ops of a unit on each device, inf where it may not be. [U, D]
        work: Mean of these seconds over the devices where it may be. [U]
        memory: Bytes of a unit's state, and of its tensors at the peak (``walk.unit_peak``). [U]
        offset: Index where each unit's neighbours start in ``neighbour``. [U + 1]
        neighbour: Units that exchange tensors with a unit, unit after unit. [E]
        forth: Bytes that a unit gets from a neighbour and sends to it, -1 for no tensor. [2, E]
        producer: The op that makes each tensor. [T]
        reversed_producer: The same of the reversed problem, which has a tensor for each
            consumption.
        microbatches: The number of micro-batches.
        scale: Mean seconds of an op.
    """

    allowed: BoolArray
    time: FloatArray
    work: FloatArray
    memory: FloatArray
    offset: IntArray
    neighbour: IntArray
    forth: FloatArray
    producer: IntArray
    reversed_producer: IntArray
    microbatches: int
    scale: float


class Ground(NamedTuple):
    """Tables that all passes over a problem share.

    Attributes:
        c: The compiled problem.
        r: The compiled problem with all edges reversed.
        h: Allowed devices, memory limits and their penalty.
        units: Tables of units.
        weights: Weight of each feature. [F]
    """

    c: Compiled
    r: Compiled
    h: Neighbourhood
    units: RefiningUnits
    weights: SingleArray


class Placed(NamedTuple):
    """A placement that passes refine. Its arrays change in place.

    Attributes:
        device: Device of each op. [n]
        order: The order of all ops. [n]
        score: Predicted seconds, with the penalty for memory. [1]
    """

    device: IntArray
    order: IntArray
    score: FloatArray


class Previous(NamedTuple):
    """The placement before a pass, as the pass sees it: backwards if it walks the reversed problem.

    Attributes:
        device: Device of each unit. [U]
        order: All ops by their start. [n]
        distance: Seconds from each op's start to the end. [n]
        critical: Criticality of each unit: 1 on the longest path, near 0 with much slack. [U]
        seconds: Seconds of the longest path.
        peak: Bytes on each device at the peak; 0 if memory does not matter. [D]
        back: 1 for the reversed problem, else 0.
    """

    device: IntArray
    order: IntArray
    distance: FloatArray
    critical: FloatArray
    seconds: float
    peak: FloatArray
    back: int


class Partial(NamedTuple):
    """The schedule of a pass so far. A unit that is not decided counts where it was before.

    Attributes:
        device: Device of each unit, -1 undecided. [U]
        start: Seconds at which each booked op starts. [n]
        booked: Times of devices and links that booked ops take.
        load: Seconds of work on each device. [D]
        peak: Bytes on each device at the peak. [D]
        next_offset: Index where each device's previous sequence starts in ``sequence``. [D + 1]
        next: Index in ``sequence`` of each device's first op that is still to come. [D]
        sequence: Previous sequences of ops, device after device. [n]
        counts: Numbers of ops booked, of units decided, and of units moved. [3]
    """

    device: IntArray
    start: FloatArray
    booked: Booked
    load: FloatArray
    peak: FloatArray
    next_offset: IntArray
    next: IntArray
    sequence: IntArray
    counts: IntArray


@kernel
def sort_by_start(order: IntArray, start: FloatArray) -> IntArray:
    """Return the ops by their start; ops that start together are as in ``order``. [n]"""
    n = len(order)
    keys = empty_floats(n)
    result = empty_ints(n)
    for k in range(n):
        keys[k] = start[order[k]]
    by_key = ascending(keys)
    for k in range(n):
        result[k] = order[by_key[k]]
    return result


@kernel
def criticality(
    unit_of: IntArray,
    device: IntArray,
    before: FloatArray,
    distance: FloatArray,
    num_units: int,
) -> tuple[IntArray, FloatArray, float]:
    """Return the device and the criticality of each unit, and seconds of the longest path. [U], [U]

    The slack of an op is by how much the longest path through it is shorter than the longest of
    all. Criticality falls exponentially with the least slack of the unit's ops.

    Args:
        unit_of: Placement unit of each op. [n]
        device: Device of each op. [n]
        before: Seconds before each op's start. [n]
        distance: Seconds from each op's start to the end. [n]
        num_units: The number of units, U.
    """
    longest = 0.0
    for op in range(len(device)):
        longest = max(longest, before[op] + distance[op])
    seconds = max(longest, TINY)
    unit_device = zero_ints(num_units)
    critical = zero_floats(num_units)
    for op in range(len(device)):
        u = unit_of[op]
        unit_device[u] = device[op]
        slack = max(0.0, longest - before[op] - distance[op]) / seconds
        critical[u] = max(critical[u], np.exp(-slack / SOFT))
    return unit_device, critical, seconds


def read_previous(ground: Ground, placed: Placed, back: int) -> Previous:
    """Return a placement as a pass sees it that walks forwards, or backwards with ``back`` = 1."""
    compiled = ground.c
    reversed_compiled = ground.r
    device = placed.device
    num_units = len(ground.h.allowed)

    # The schedule from both ends: seconds before each op, and seconds from it to the end.
    start, finish = find_times(compiled, device, placed.order)
    backwards = list_schedule(reversed_compiled, device, finish)
    start_back, finish_back = find_times(reversed_compiled, device, backwards)
    if back:
        order = sort_by_start(backwards, start_back)
        distance = finish
        begin = start_back
    else:
        order = sort_by_start(placed.order, start)
        distance = finish_back
        begin = start
    unit_device, critical, seconds = criticality(
        compiled.unit_of, device, begin, distance, num_units
    )
    peak = np.zeros(len(compiled.memory))
    if ground.h.memory_matters:
        peak = peak_memory(compiled, device, placed.order)
    return Previous(
        device=unit_device,
        order=order,
        distance=distance,
        critical=critical,
        seconds=seconds,
        peak=peak,
        back=back,
    )


@inner()
def start_pass(compiled: Compiled, units: RefiningUnits, previous: Previous) -> Partial:
    """Return the empty schedule of a pass, with all units where they were before."""
    n, num_devices = compiled.times.shape
    load = zero_floats(num_devices)
    for u in range(len(previous.device)):
        load[previous.device[u]] += units.time[u, previous.device[u]]
    offset = zero_ints(num_devices + 1)
    for op in range(n):
        offset[previous.device[compiled.unit_of[op]] + 1] += 1
    for d in range(num_devices):
        offset[d + 1] += offset[d]
    at = offset[:-1].copy()
    sequence = empty_ints(n)
    for op in previous.order:
        d = previous.device[compiled.unit_of[op]]
        sequence[at[d]] = op
        at[d] += 1
    return Partial(
        device=full_ints(len(previous.device), -1),
        start=zero_floats(n),
        booked=make_empty_schedule(n, len(compiled.size), num_devices, compiled.links),
        load=load,
        peak=previous.peak.copy(),
        next_offset=offset,
        next=offset[:-1].copy(),
        sequence=sequence,
        counts=zero_ints(3),
    )


@inner(_nrt=False)
def next_distance(
    compiled: Compiled, partial: Partial, previous: Previous, d: int, unit: int
) -> float:
    """Return the seconds to the end from the start of the op that a device runs next.

    That is the first op of the device's previous sequence that is not booked, not decided for
    another device, and not of the unit; 0 if there is none.

    Args:
        compiled: The compiled problem.
        partial: The schedule so far; ``next`` of the device is advanced.
        previous: The placement before the pass.
        d: The device.
        unit: The unit that is being decided.
    """
    high = partial.next_offset[d + 1]
    finish = partial.booked.finish
    k = partial.next[d]
    while k < high:
        op = partial.sequence[k]
        at = partial.device[compiled.unit_of[op]]
        if finish[op] < 0.0 and (at < 0 or at == d):
            break
        k += 1
    partial.next[d] = k
    while k < high:
        op = partial.sequence[k]
        at = partial.device[compiled.unit_of[op]]
        if compiled.unit_of[op] != unit and finish[op] < 0.0 and (at < 0 or at == d):
            return previous.distance[op]
        k += 1
    return 0.0


@inner(_nrt=False)
def settle(
    units: RefiningUnits, previous: Previous, partial: Partial, unit: int, d: int
) -> None:
    """Decide device ``d`` for a unit, and move its work and memory there."""
    partial.device[unit] = d
    partial.counts[1] += 1
    old = previous.device[unit]
    if d == old:
        return
    partial.counts[2] += 1
    partial.load[old] -= units.time[unit, old]
    partial.load[d] += units.time[unit, d]
    partial.peak[old] -= units.memory[unit]
    partial.peak[d] += units.memory[unit]


@inner(_nrt=False)
def book(compiled: Compiled, producer: IntArray, partial: Partial, op: int) -> None:
    """Append an op to the schedule of its device, and the transfers of its inputs to the links'.

    Args:
        compiled: The compiled problem.
        producer: The op that makes each tensor. [T]
        partial: The schedule so far; changed in place.
        op: The op, whose unit is decided.
    """
    i = Index(op)
    d = Index(partial.device[Index(compiled.unit_of[i])])
    booked = partial.booked
    ready = 0.0
    extra = 0.0
    for k in range(
        Index(compiled.input_offset[i]), Index(compiled.input_offset[i + ONE])
    ):
        tensor = Index(compiled.input_tensor[k])
        j = Index(producer[tensor])
        source = Index(partial.device[Index(compiled.unit_of[j])])
        input_tensor = InputTensor(j, tensor, compiled.size[tensor], source)
        arrived, received = bring(compiled.links, booked, input_tensor, d)
        ready = max(ready, arrived)
        extra = extra + received
    partial.start[i] = max(booked.free[d], ready) + extra
    booked.finish[i] = partial.start[i] + compiled.times[i, d]
    booked.free[d] = booked.finish[i]
    partial.counts[0] += 1


def refining_units(graph: WalkGraph) -> RefiningUnits:
    """Return the tables of a problem's units."""
    space = graph.space
    walk = graph.forward
    problem = space.problem
    times = space.compiled.times
    mean_time = float(np.mean(times[np.isfinite(times)]))
    return RefiningUnits(
        allowed=np.ascontiguousarray(problem.unit_allowed),
        time=space.work,
        work=space.mean_work,
        memory=walk.unit_state + walk.unit_peak,
        offset=walk.flow_offset,
        neighbour=walk.flow_unit,
        forth=np.stack([walk.flow_in, walk.flow_out]),
        producer=problem.graph.producer.astype(np.int32),
        reversed_producer=problem.graph.consumer.astype(np.int32),
        microbatches=problem.microbatches,
        scale=max(mean_time, TINY),
    )
