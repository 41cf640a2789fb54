"""The decoder's partial schedule: what it holds, which devices are open, how decisions change it.

``kernels`` says what a decision sees of it and how it is made. Complexity: ``candidates`` O(D flows
of the unit), ``book`` O(inputs of the op).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.allocation import (
    full_floats,
    full_ints,
    full_table,
    zero_flags,
    zero_floats,
    zero_ints,
)
from gnnplace.graph.jit import inner
from gnnplace.policy.decode.walk import Walk
from gnnplace.simulation.indices import ONE, Index
from gnnplace.simulation.transfer import fetch, linked, receive_time

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


class State(NamedTuple):
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


class Weights(NamedTuple):
    """The decoder's parameters; F features, H hidden, 0 without a hidden layer.

    Attributes:
        skip: from a feature straight to the score. [F]
        first: of features to the first hidden layer; its bias is part of the context. [F, H]
        second: from a candidate's first hidden layer to its second. [H, H]
        pooled: from the mean of the candidates' first hidden layers to the second. [H, H]
        bias: of the second hidden layer. [H]
        last: from the second hidden layer to the score. [H]
    """

    skip: SingleArray
    first: SingleArray
    second: SingleArray
    pooled: SingleArray
    bias: SingleArray
    last: SingleArray


@inner()
def start_state(w: Walk) -> State:
    """The state before the first decision."""
    m, num_devices = w.time.shape
    now = zero_ints(2)
    now[1] = -1
    return State(
        full_ints(len(w.unit_work), -1),
        full_floats(m, -1.0),
        full_table(w.num_tensors, num_devices, -1.0),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_floats(num_devices),
        zero_flags(num_devices),
        zero_floats(w.links.num_channels),
        zero_floats(m if w.links.sends_cost else 0),
        now,
        zero_floats(2),
    )


@inner(_nrt=False)
def candidates(w: Walk, s: State, u: int, limit: int, margin: float, allowed: BoolArray) -> int:
    """Devices unit ``u`` may be on: kinds and pins, links, state, memory, the number of devices.

    A condition that no device meets is dropped, the last one first. ``margin`` times the
    bytes at the peak have to fit. Returns the number of candidates.
    """
    num_devices, u = len(s.free), Index(u)
    count = 0
    for strictness in range(4, -1, -1):
        for d in range(num_devices):
            good = np.isfinite(w.unit_time[u, d])
            if good and strictness >= 4 and s.now[0] >= limit:
                good = s.used[d]
            if good and strictness >= 2:
                need = s.state[d] + w.unit_state[u]
                if strictness >= 3:
                    need += margin * (s.peak[d] + w.unit_peak[u])
                good = need <= w.memory[d]
            if good and strictness >= 1:
                for k in range(Index(w.flow_offset[u]), Index(w.flow_offset[u + ONE])):
                    e = s.device[Index(w.flow_unit[k])]
                    if e >= 0 and e != d:
                        e = Index(e)
                        if w.flow_in[k] >= 0.0 and not linked(w.links, e, Index(d)):
                            good = False
                        if w.flow_out[k] >= 0.0 and not linked(w.links, Index(d), e):
                            good = False
            allowed[d] = good
            count += good
        if count > 0:
            return count
    return 0


@inner(_nrt=False)
def decide(w: Walk, s: State, u: int, d: int) -> None:
    """Puts unit ``u`` on device ``d``."""
    s.device[u] = d
    s.load[d] += w.unit_time[u, d] if np.isfinite(w.unit_time[u, d]) else w.unit_work[u]
    s.state[d] += w.unit_state[u]
    s.peak[d] += w.unit_peak[u]
    if not s.used[d]:
        s.used[d] = True
        s.now[0] += 1
    if s.now[1] != d:
        s.sums[1] = 0.0
        s.now[1] = d
    s.sums[0] += w.unit_work[u]
    s.sums[1] += w.unit_work[u]


@inner(_nrt=False)
def book(w: Walk, s: State, i: int) -> None:
    """Appends visited op ``i`` to the schedule of its device, its inputs to the links' queues."""
    i = Index(i)
    d, links = Index(s.device[Index(w.unit[i])]), w.links
    ready, extra = 0.0, 0.0
    for k in range(Index(w.before_offset[i]), Index(w.before_offset[i + ONE])):
        j, tensor = Index(w.before[k]), Index(w.before_tensor[k])
        at = s.finish[j]
        if at < 0.0:
            continue
        e = Index(s.device[Index(w.unit[j])])
        if e != d:
            if s.arrival[tensor, d] < 0.0 and linked(links, e, d):
                size = w.before_size[k]
                s.arrival[tensor, d] = fetch(
                    links, s.channel_free, s.free, s.sent, j, e, d, size, at
                )
                if links.receives_cost:
                    extra += receive_time(links, e, d, size)
            at = max(at, s.arrival[tensor, d])
        ready = max(ready, at)
    time = w.time[i, d] if np.isfinite(w.time[i, d]) else w.scale
    s.finish[i] = max(s.free[d], ready) + extra + time
    s.free[d] = s.finish[i]
