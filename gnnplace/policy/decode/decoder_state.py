"""The decoder's partial schedule: its contents, candidate devices, and updates after a decision.

``kernels`` has the features and the rule of a decision. Passes of refinement share the booked part
of a schedule (``Booked``) and the arrival of inputs at a device (``foresee``, ``bring``).
Complexity: ``candidates`` O(D flows of the unit), ``book`` O(inputs of the op).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray, SingleArray
from gnnplace.graph import (
    ONE,
    Index,
    full_floats,
    full_ints,
    full_table,
    inner,
    zero_flags,
    zero_floats,
    zero_ints,
)
from gnnplace.policy.decode.walk import Walk
from gnnplace.simulation import (
    DELAY,
    PACE,
    Links,
    SendQueues,
    compute_arrival,
    fetch,
    fetch_begin,
    has_link,
    receive_time,
    send_time,
)

# What ``foresee`` adds up of each device, the first rows of a decision's scratch.
READY, WAIT, MOVE, EXTRA, SENDING = range(5)


class Booked(NamedTuple):
    """The time that is booked of devices and links so far.

    Attributes:
        finish: seconds at which each op finishes, -1 not walked. [m]
        arrival: seconds at which a tensor is on a device, -1 not sent there. [T, D]
        free: seconds at which each device is free. [D]
        channel_free: seconds at which each channel is free. [C]
        sent: seconds at which the copies made for each op so far end; no rows where no link costs
            its sender time. [m]
    """

    finish: FloatArray
    arrival: FloatArray
    free: FloatArray
    channel_free: FloatArray
    sent: FloatArray


class DecisionRoom(NamedTuple):
    """Buffers for one decision, which each decision overwrites.

    Attributes:
        allowed: The candidates. [D]
        scratch: Room for ``SCRATCH`` numbers a device. [SCRATCH, D]
        features: Features of the candidates. [D, F]
    """

    allowed: BoolArray
    scratch: FloatArray
    features: SingleArray


class DecisionRecord(NamedTuple):
    """The record of each decision, by its number. No rows if nothing is recorded.

    Attributes:
        features: Features of the candidates. [U, D, F]
        masks: The candidates. [U, D]
        step: The visited op. [U]
    """

    features: SingleArray
    masks: BoolArray
    step: IntArray


class PartialSchedule(NamedTuple):
    """The partial schedule.

    Attributes:
        device: device of each unit, -1 undecided. [U]
        booked: what is booked of the visited ops.
        load: seconds of all decided units on each device, all copies. [D]
        state: bytes of state on each device. [D]
        peak: bytes of the tensors of each device's units at the peak. [D]
        used: whether a device has any unit. [D]
        usage: number of used devices; device of the decision before, -1 none. [2]
        sums: work decided; work decided on the current device without a break. [2]
    """

    device: IntArray
    booked: Booked
    load: FloatArray
    state: FloatArray
    peak: FloatArray
    used: BoolArray
    usage: IntArray
    sums: FloatArray


class Goal(NamedTuple):
    """The aim of a decode in the form that kernels take.

    Attributes:
        limit: number of devices, 1..D.
        rounds: number of runs of consecutive work on each device.
        chunks: 1 where long runs on one device are wanted, else 0.
        plan: device of each unit in a plan of chunks (``plans.chunk_plan``), -1 without. [U]
        lean: 0; 1 where the load does not matter; 2 where earliest starts count, not finishes.
        rule: How the next op is chosen: ``ready_queue``'s FIXED, IN_TIME or EARLY.
    """

    limit: int
    rounds: int
    chunks: int
    plan: IntArray
    lean: int
    rule: int


@inner()
def make_empty_schedule(
    num_ops: int, num_tensors: int, num_devices: int, links: Links
) -> Booked:
    """Return an empty schedule."""
    return Booked(
        full_floats(num_ops, -1.0),
        full_table(num_tensors, num_devices, -1.0),
        zero_floats(num_devices),
        zero_floats(links.num_channels),
        zero_floats(num_ops if links.sends_cost else 0),
    )


@inner()
def start_state(walk: Walk) -> PartialSchedule:
    """Return the state before the first decision."""
    m, num_devices = walk.time.shape
    usage = zero_ints(2)
    usage[1] = -1
    return PartialSchedule(
        full_ints(len(walk.unit_work), -1),
        make_empty_schedule(m, walk.num_tensors, num_devices, walk.links),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_flags(num_devices),
        usage,
        zero_floats(2),
    )


@inner(_nrt=False)
def candidates(
    walk: Walk,
    state: PartialSchedule,
    unit: int,
    limit: int,
    margin: float,
    allowed: BoolArray,
) -> int:
    """Return the devices unit ``unit`` may be on: kinds and pins, links, state, memory, the number
    of devices.

    A condition that no device meets is dropped, the last one first. ``margin`` times the
    bytes at the peak have to fit. Returns the number of candidates.
    """
    num_devices = len(state.load)
    unit = Index(unit)
    count = 0
    # 4: all conditions; 3: any number of devices; 2: the state alone has to fit; 1: any memory;
    # 0: kinds and pins alone.
    for strictness in range(4, -1, -1):
        for d in range(num_devices):
            good = np.isfinite(walk.unit_time[unit, d])
            if good and strictness >= 4 and state.usage[0] >= limit:
                good = state.used[d]
            if good and strictness >= 2:
                need = state.state[d] + walk.unit_state[unit]
                if strictness >= 3:
                    need += margin * (state.peak[d] + walk.unit_peak[unit])
                good = need <= walk.memory[d]
            if good and strictness >= 1:
                # Each placed neighbour needs a link in the directions that messages take.
                for k in range(
                    Index(walk.flow_offset[unit]), Index(walk.flow_offset[unit + ONE])
                ):
                    e = state.device[Index(walk.flow_unit[k])]
                    if e >= 0 and e != d:
                        e = Index(e)
                        if walk.flow_in[k] >= 0.0 and not has_link(
                            walk.links, e, Index(d)
                        ):
                            good = False
                        if walk.flow_out[k] >= 0.0 and not has_link(
                            walk.links, Index(d), e
                        ):
                            good = False
            allowed[d] = good
            count += good
        if count > 0:
            return count
    return 0


@inner(_nrt=False)
def decide(walk: Walk, state: PartialSchedule, unit: int, d: int) -> None:
    """Put unit ``unit`` on device ``d``."""
    state.device[unit] = d
    state.load[d] += (
        walk.unit_time[unit, d]
        if np.isfinite(walk.unit_time[unit, d])
        else walk.unit_work[unit]
    )
    state.state[d] += walk.unit_state[unit]
    state.peak[d] += walk.unit_peak[unit]
    if not state.used[d]:
        state.used[d] = True
        state.usage[0] += 1
    if state.usage[1] != d:
        state.sums[1] = 0.0
        state.usage[1] = d
    state.sums[0] += walk.unit_work[unit]
    state.sums[1] += walk.unit_work[unit]


class InputTensor(NamedTuple):
    """An input of an op.

    Attributes:
        producer: The op that makes it.
        tensor: Its number.
        size: Its bytes.
        device: The device of ``producer``.
    """

    producer: int
    tensor: int
    size: float
    device: int


@inner(_nrt=False)
def foresee(
    links: Links,
    booked: Booked,
    given: InputTensor,
    d: int,
    delays: float,
    seen: FloatArray,
) -> bool:
    """Add up what an input would mean for an op on device ``d``; return whether it is there
    already.

    Args:
        links: the links.
        booked: the schedule so far.
        given: the input.
        d: the device looked at.
        delays: 1 where transfers count with what they take beside their bytes, else 0.
        seen: changed: ``READY`` .. ``SENDING`` of each device. [SCRATCH, D]
    """
    j, tensor, size, e = given
    at = booked.finish[j]
    local = e == d
    if not local and booked.arrival[tensor, d] >= 0.0:
        local = True
        at = max(at, booked.arrival[tensor, d])
    elif not local and has_link(links, e, d):
        begin = fetch_begin(links, booked.channel_free, booked.sent, j, e, d, at)
        seen[WAIT, d] = max(seen[WAIT, d], begin - at)
        seen[MOVE, d] += (
            size * links.costs[e, d, PACE] + delays * links.costs[e, d, DELAY]
        )
        at = compute_arrival(links, e, d, size, begin)
        if links.receives_cost:
            seen[EXTRA, d] += receive_time(links, e, d, size)
        if links.sends_cost:
            seen[SENDING, d] += send_time(links, e, d, size)
    seen[READY, d] = max(seen[READY, d], at)
    return local


@inner(_nrt=False)
def bring(
    links: Links, booked: Booked, given: InputTensor, d: int
) -> tuple[float, float]:
    """Return when an input is on device ``d``, sent there if need be, and seconds to receive it.

    Arguments as of ``foresee``.
    """
    j, tensor, size, e = given
    at = booked.finish[j]
    extra = 0.0
    if e != d:
        if booked.arrival[tensor, d] < 0.0 and has_link(links, e, d):
            queues = SendQueues(booked.channel_free, booked.free, booked.sent)
            booked.arrival[tensor, d] = fetch(links, queues, j, e, d, size, at)
            if links.receives_cost:
                extra = receive_time(links, e, d, size)
        at = max(at, booked.arrival[tensor, d])
    return at, extra


@inner(_nrt=False)
def book(walk: Walk, state: PartialSchedule, i: int) -> None:
    """Append visited op ``i`` to the schedule of its device, its inputs to the links' queues."""
    i = Index(i)
    d = Index(state.device[Index(walk.unit[i])])
    booked = state.booked
    ready = 0.0
    extra = 0.0
    for k in range(Index(walk.before_offset[i]), Index(walk.before_offset[i + ONE])):
        j = Index(walk.before_op[k])
        tensor = Index(walk.before_tensor[k])
        if booked.finish[j] < 0.0:
            continue
        e = Index(state.device[Index(walk.unit[j])])
        at, received = bring(
            walk.links, booked, InputTensor(j, tensor, walk.before_size[k], e), d
        )
        ready = max(ready, at)
        extra = extra + received
    if np.isfinite(walk.time[i, d]):
        time = walk.time[i, d]
    else:
        time = walk.scale
    booked.finish[i] = max(booked.free[d], ready) + extra + time
    booked.free[d] = booked.finish[i]
