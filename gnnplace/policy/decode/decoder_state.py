"""The decoder's partial schedule: what it holds, which devices are open, how decisions change it.

``kernels`` says what a decision sees of it and how it is made. Complexity: ``candidates`` O(D flows
of the unit), ``book`` O(inputs of the op).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph.jit import inner
from gnnplace.graph.kernel_arrays import (
    ONE,
    Index,
    full_floats,
    full_ints,
    full_table,
    zero_flags,
    zero_floats,
    zero_ints,
)
from gnnplace.policy.decode.walk import Walk
from gnnplace.simulation.transfer import fetch, linked, receive_time


class PartialSchedule(NamedTuple):
    """The partial schedule.

    Attributes:
        device: device of each unit, -1 undecided. [U]
        finish: seconds at which each visited op finishes, -1 not visited. [m]
        arrival: seconds at which a tensor is on a device, -1 not sent there. [T, D]
        free: seconds at which each device is free. [D]
        load: seconds of all decided units on each device, all copies. [D]
        state: bytes of state on each device. [D]
        peak: bytes of the tensors of each device's units at the peak. [D]
        used: whether a device has any unit. [D]
        channel_free: seconds at which each channel is free. [C]
        sent: seconds at which the copies made for each op so far end; no rows where no link costs
            its sender time. [m]
        now: number of used devices; device of the decision before, -1 none. [2]
        sums: work decided; work decided on the current device without a break. [2]
    """

    device: IntArray
    finish: FloatArray
    arrival: FloatArray
    free: FloatArray
    load: FloatArray
    state: FloatArray
    peak: FloatArray
    used: BoolArray
    channel_free: FloatArray
    sent: FloatArray
    now: IntArray
    sums: FloatArray


class Goal(NamedTuple):
    """What a decode aims at.

    Attributes:
        limit: number of devices, 1..D.
        rounds: number of runs of consecutive work on each device.
        chunks: 1 where long runs on one device are wanted, else 0.
        plan: device of each unit in a plan of chunks (``plans.chunk_plan``), -1 without. [U]
        lean: 0; 1 where the load does not matter; 2 where earliest starts count, not finishes.
        rule: which op is next, ``ready_queue``'s FIXED, IN_TIME or EARLY.
    """

    limit: int
    rounds: int
    chunks: int
    plan: IntArray
    lean: int
    rule: int


@inner()
def start_state(walk: Walk) -> PartialSchedule:
    """The state before the first decision."""
    m, num_devices = walk.time.shape
    now = zero_ints(2)
    now[1] = -1
    return PartialSchedule(
        full_ints(len(walk.unit_work), -1),
        full_floats(m, -1.0),
        full_table(walk.num_tensors, num_devices, -1.0),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_flags(num_devices),
        zero_floats(walk.links.num_channels),
        zero_floats(m if walk.links.sends_cost else 0),
        now,
        zero_floats(2),
    )


@inner(_nrt=False)
def candidates(
    walk: Walk, state: PartialSchedule, unit: int, limit: int, margin: float, allowed: BoolArray
) -> int:
    """Devices unit ``unit`` may be on: kinds and pins, links, state, memory, the number of devices.

    A condition that no device meets is dropped, the last one first. ``margin`` times the
    bytes at the peak have to fit. Returns the number of candidates.
    """
    num_devices, unit = len(state.free), Index(unit)
    count = 0
    for strictness in range(4, -1, -1):
        for d in range(num_devices):
            good = np.isfinite(walk.unit_time[unit, d])
            if good and strictness >= 4 and state.now[0] >= limit:
                good = state.used[d]
            if good and strictness >= 2:
                need = state.state[d] + walk.unit_state[unit]
                if strictness >= 3:
                    need += margin * (state.peak[d] + walk.unit_peak[unit])
                good = need <= walk.memory[d]
            if good and strictness >= 1:
                for k in range(Index(walk.flow_offset[unit]), Index(walk.flow_offset[unit + ONE])):
                    e = state.device[Index(walk.flow_unit[k])]
                    if e >= 0 and e != d:
                        e = Index(e)
                        if walk.flow_in[k] >= 0.0 and not linked(walk.links, e, Index(d)):
                            good = False
                        if walk.flow_out[k] >= 0.0 and not linked(walk.links, Index(d), e):
                            good = False
            allowed[d] = good
            count += good
        if count > 0:
            return count
    return 0


@inner(_nrt=False)
def decide(walk: Walk, state: PartialSchedule, unit: int, d: int) -> None:
    """Puts unit ``unit`` on device ``d``."""
    state.device[unit] = d
    state.load[d] += (
        walk.unit_time[unit, d] if np.isfinite(walk.unit_time[unit, d]) else walk.unit_work[unit]
    )
    state.state[d] += walk.unit_state[unit]
    state.peak[d] += walk.unit_peak[unit]
    if not state.used[d]:
        state.used[d] = True
        state.now[0] += 1
    if state.now[1] != d:
        state.sums[1] = 0.0
        state.now[1] = d
    state.sums[0] += walk.unit_work[unit]
    state.sums[1] += walk.unit_work[unit]


@inner(_nrt=False)
def book(walk: Walk, state: PartialSchedule, i: int) -> None:
    """Appends visited op ``i`` to the schedule of its device, its inputs to the links' queues."""
    i = Index(i)
    d, links = Index(state.device[Index(walk.unit[i])]), walk.links
    ready, extra = 0.0, 0.0
    for k in range(Index(walk.before_offset[i]), Index(walk.before_offset[i + ONE])):
        j, tensor = Index(walk.before[k]), Index(walk.before_tensor[k])
        at = state.finish[j]
        if at < 0.0:
            continue
        e = Index(state.device[Index(walk.unit[j])])
        if e != d:
            if state.arrival[tensor, d] < 0.0 and linked(links, e, d):
                size = walk.before_size[k]
                state.arrival[tensor, d] = fetch(
                    links, state.channel_free, state.free, state.sent, j, e, d, size, at
                )
                if links.receives_cost:
                    extra += receive_time(links, e, d, size)
            at = max(at, state.arrival[tensor, d])
        ready = max(ready, at)
    time = walk.time[i, d] if np.isfinite(walk.time[i, d]) else walk.scale
    state.finish[i] = max(state.free[d], ready) + extra + time
    state.free[d] = state.finish[i]
