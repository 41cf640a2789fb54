"""The state of a pass of refinement: units, the previous placement, the schedule so far.

``refining`` describes a pass. Complexity: O(inputs) a booking, O(n + units) for everything else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray, SingleArray
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
    nothing_booked,
)
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.simulation import Compiled, find_times, list_schedule, peak_memory

SOFT = 0.02  # slack, of the step time, in which criticality falls by e


class RefiningUnits(NamedTuple):
    """Tables of units for a pass. U units, D devices.

    Attributes:
        allowed: devices of each unit. [U, D]
        time: seconds of all its ops on each device, inf where not allowed. [U, D]
        work: the same, mean over its devices. [U]
        memory: bytes of its state and of its tensors at the peak (``walk.unit_peak``). [U]
        offset: Index where each unit's neighbours start. [U + 1]
        neighbour: units that exchange tensors with a unit, by ``offset``. [E]
        forth: bytes to and fro, -1 where none go that way. [2, E]
        producer: the producer of each tensor. [T]
        reversed_producer: the producer of each tensor of the reversed problem. [edges]
        microbatches: the number of micro-batches.
        scale: mean seconds of an op.
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
        c: the problem as the simulator has it.
        r: the reversed problem as the simulator has it.
        h: what moves look up: allowed devices, memory limits and their penalty.
        units: what is looked up of units.
        weights: the weight of each feature. [F]
    """

    c: Compiled
    r: Compiled
    h: Neighbourhood
    units: RefiningUnits
    weights: SingleArray


class Placed(NamedTuple):
    """A placement that passes refine; arrays change in place.

    Attributes:
        device: the device of each op. [n]
        order: the order of all ops. [n]
        score: predicted seconds with penalty. [1]
    """

    device: IntArray
    order: IntArray
    score: FloatArray


class Previous(NamedTuple):
    """The previous placement, in the direction of a pass.

    Attributes:
        device: the device of each unit. [U]
        order: all ops by start. [n]
        distance: seconds from each op's start to the end. [n]
        critical: how critical each unit is, 0..1. [U]
        seconds: the step time.
        peak: bytes on each device; 0 where memory does not matter. [D]
        back: 1 for the reversed problem.
    """

    device: IntArray
    order: IntArray
    distance: FloatArray
    critical: FloatArray
    seconds: float
    peak: FloatArray
    back: int


class Partial(NamedTuple):
    """The schedule of a pass so far.

    Attributes:
        device: the device of each unit, -1 undecided. [U]
        start: seconds at which each op starts. [n]
        booked: what is booked of the ops walked.
        load: seconds of work on each device, decided and previous. [D]
        peak: bytes on each device, decided and previous. [D]
        next_offset: Index where each device's previous sequence starts in ``sequence``. [D + 1]
        next: the first op of it that is still to come. [D]
        sequence: previous sequences of the devices. [n]
        counts: ops walked, units decided, units moved. [3]
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
def by_start(order: IntArray, start: FloatArray) -> IntArray:
    """Return the ops by start, those of one instant as in ``order``. [n]"""
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
    """Return the device of each unit, how critical it is, and seconds of the longest path. [U], [U]

    Args:
        unit_of: placement unit of each op. [n]
        device: device of each op. [n]
        before: seconds before each op's start. [n]
        distance: seconds from each op's start to the end. [n]
        num_units: the number of units, U.
    """
    longest = 0.0
    for op in range(len(device)):
        longest = max(longest, before[op] + distance[op])
    seconds = max(longest, 1e-300)
    unit_device = zero_ints(num_units)
    critical = zero_floats(num_units)
    for op in range(len(device)):
        u = unit_of[op]
        unit_device[u] = device[op]
        slack = max(0.0, longest - before[op] - distance[op]) / seconds
        critical[u] = max(critical[u], np.exp(-slack / SOFT))
    return unit_device, critical, seconds


def read_previous(ground: Ground, placed: Placed, back: int) -> Previous:
    """Return what a pass in one direction knows of a placement."""
    c = ground.c
    r = ground.r
    h = ground.h
    device = placed.device
    num_units = len(h.allowed)
    start, finish = find_times(c, device, placed.order)
    backwards = list_schedule(r, device, finish)
    start_back, finish_back = find_times(r, device, backwards)
    order = by_start(placed.order, start)
    distance = finish_back
    begin = start
    if back:
        order = by_start(backwards, start_back)
        distance = finish
        begin = start_back
    unit_device, critical, seconds = criticality(
        c.unit_of, device, begin, distance, num_units
    )
    peak = np.zeros(len(c.memory))
    if h.memory_matters:
        peak = peak_memory(c, device, placed.order)
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
    """Return the schedule before the first decision."""
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
        full_ints(len(previous.device), -1),
        zero_floats(n),
        nothing_booked(n, len(compiled.size), num_devices, compiled.links),
        load,
        previous.peak.copy(),
        offset,
        offset[:-1].copy(),
        sequence,
        zero_ints(3),
    )


@inner(_nrt=False)
def next_distance(
    compiled: Compiled, partial: Partial, previous: Previous, d: int, unit: int
) -> float:
    """Return the seconds to the end from the start of what device ``d`` does next but for unit
    ``unit``.
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
    """Put unit ``unit`` on device ``d``."""
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
    """Append ``op`` to the schedule of its device, its inputs to the links' queues."""
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
        e = Index(partial.device[Index(compiled.unit_of[j])])
        at, received = bring(
            compiled.links, booked, InputTensor(j, tensor, compiled.size[tensor], e), d
        )
        ready = max(ready, at)
        extra = extra + received
    partial.start[i] = max(booked.free[d], ready) + extra
    booked.finish[i] = partial.start[i] + compiled.times[i, d]
    booked.free[d] = booked.finish[i]
    partial.counts[0] += 1


def refining_units(graph: WalkGraph) -> RefiningUnits:
    """Return what passes look up of a problem's units."""
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
        scale=max(mean_time, 1e-300),
    )
