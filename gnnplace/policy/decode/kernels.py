"""The decoder in numba: it walks the ops of a problem and decides a device for every unit.

``decode`` visits ops in a traversal order. At the first op of a unit, ``look`` finds the candidate
devices and ``observe`` computes F features of each; ``DYNAMIC`` has the names of the features. The
unit gets the candidate with the greatest weighted sum of features. ``decide`` and ``book``
(``decoder_state``) then change the partial schedule.

Complexity of a decode of m ops on D devices: O(D * (m + inputs + flows + decisions * F)).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray, SingleArray
from gnnplace.graph import (
    ONE,
    Index,
    copy_rows,
    copy_to,
    inner,
    kernel,
    zero_flags,
    zero_single_table,
    zero_table,
)
from gnnplace.policy.decode.decoder_state import (
    EXTRA,
    MOVE,
    READY,
    SENDING,
    WAIT,
    DecisionRecord,
    DecisionRoom,
    Goal,
    InputTensor,
    PartialSchedule,
    book,
    candidates,
    decide,
    foresee,
    start_state,
)
from gnnplace.policy.decode.ready_queue import (
    FAR,
    FIXED,
    ReadyQueue,
    approach,
    next_op,
    release,
    start_queue,
)
from gnnplace.policy.decode.walk import Walk
from gnnplace.policy.naming import NamedRow, list_feature_names, name_columns
from gnnplace.simulation import DELAY, PACE, find_free_time, has_link, seconds_between

HERE, NEAR, FLOW = range(SENDING + 1, SENDING + 4)
SCRATCH = FLOW + 1  # numbers that ``observe`` adds up for each device
MOST = 4.0  # largest feature that is a ratio, such as to a device's ideal share of the work


@inner(_nrt=False)
def log_above(value: float) -> float:
    """Return ``log(1 + value)`` in single precision, which features have.

    It takes a third of the time of ``log1p``.
    """
    return np.log(np.float32(1.0 + value))


@inner(_nrt=False)
@name_columns("f")
def observe(
    walk: Walk,
    state: PartialSchedule,
    i: int,
    goal: Goal,
    allowed: BoolArray,
    scratch: FloatArray,
    out: SingleArray,
) -> None:
    """Write the features of every candidate device for the unit of an op.

    Args:
        walk: The problem, as flat arrays in the walk's direction.
        state: The schedule so far.
        i: The visited op.
        goal: What the decode aims at.
        allowed: Whether a device is a candidate. [D]
        scratch: Room for ``SCRATCH`` numbers for each device; overwritten. [SCRATCH, D]
        out: Output: features, 0 for devices that are no candidates. [D, F]
    """
    limit = goal.limit
    rounds = goal.rounds
    num_devices = len(state.load)
    i = Index(i)
    booked = state.booked
    u = Index(walk.unit[i])
    scale = walk.scale
    ideal = walk.work / limit
    run = (state.sums[1] + walk.unit_work[u]) / (ideal / rounds)
    links = walk.links
    for k in range(SCRATCH):
        for d in range(num_devices):
            scratch[k, d] = 0.0
    ready = scratch[READY]
    wait = scratch[WAIT]
    move = scratch[MOVE]
    extra = scratch[EXTRA]
    sending = scratch[SENDING]
    num_local = scratch[HERE]
    near = scratch[NEAR]
    flow = scratch[FLOW]
    # 1. When the op's inputs are on each device, and what it takes to bring them there.
    num_inputs = 0
    for k in range(Index(walk.before_offset[i]), Index(walk.before_offset[i + ONE])):
        j = Index(walk.before_op[k])
        tensor = Index(walk.before_tensor[k])
        if booked.finish[j] < 0.0:
            continue
        num_inputs += 1
        input_device = Index(state.device[Index(walk.unit[j])])
        size = walk.before_size[k]
        input_tensor = InputTensor(j, tensor, size, input_device)
        for d in range(num_devices):
            if allowed[d] and foresee(
                links, booked, input_tensor, Index(d), 1.0, scratch
            ):
                num_local[d] += 1.0
    # 2. Bytes and seconds of what the unit exchanges with its neighbours that are placed.
    near_total = 0.0
    for k in range(Index(walk.flow_offset[u]), Index(walk.flow_offset[u + ONE])):
        if state.device[Index(walk.flow_unit[k])] < 0:
            continue
        near_device = Index(state.device[Index(walk.flow_unit[k])])
        into = max(walk.flow_in[k], 0.0)
        out_of = max(walk.flow_out[k], 0.0)
        near[near_device] += into + out_of
        near_total += into + out_of
        for d in range(num_devices):
            if allowed[d] and Index(d) != near_device:
                flow[d] += (
                    into * links.costs[near_device, d, PACE]
                    + out_of * links.costs[d, near_device, PACE]
                )
                if walk.flow_in[k] >= 0.0:
                    flow[d] += links.costs[near_device, d, DELAY]
                if walk.flow_out[k] >= 0.0:
                    flow[d] += links.costs[d, near_device, DELAY]
    # 3. The best value of any candidate, which features compare each candidate with.
    least_start = np.inf
    least_finish = np.inf
    least_ready = np.inf
    least_time = np.inf
    least_load = np.inf
    most_load = 0.0
    least_device = np.inf
    for d in range(num_devices):
        most_load = max(most_load, state.load[d])
        if allowed[d]:
            begin = max(booked.free[d], ready[d]) + extra[d]
            least_start = min(least_start, begin)
            least_finish = min(least_finish, begin + walk.time[i, d] + sending[d])
            least_ready = min(least_ready, ready[d])
            least_time = min(least_time, walk.unit_time[u, d])
            least_load = min(least_load, state.load[d])
            least_device = min(least_device, walk.device_time[d])
    # 4. The features of each candidate.
    current = state.usage[1]
    over = max(0.0, run - 1.0) if goal.chunks else 0.0
    progress = state.sums[0] / walk.work
    for d in range(num_devices):
        f: NamedRow = out[d]
        if not allowed[d]:
            for k in range(len(f)):
                f[k] = 0.0
            continue
        begin = max(booked.free[d], ready[d]) + extra[d]
        end = begin + walk.time[i, d] + sending[d]  # with the senders' overheads
        load = state.load[d] + walk.unit_time[u, d]
        f["earliest finish above the best, out of chunks"] = log_above(
            (end - least_finish) / scale
        )
        f["earliest start above the best"] = log_above((begin - least_start) / scale)
        f["data ready above the best"] = log_above((ready[d] - least_ready) / scale)
        f["idle gap"] = log_above((begin - booked.free[d]) / scale)
        f["wait for links"] = log_above(wait[d] / scale)
        f["transfers of this op's inputs"] = log_above(move[d] / scale)
        f["transfers of the unit with its placed neighbours"] = log_above(
            flow[d] / scale
        )
        f["the same, of the ideal share"] = min(MOST, flow[d] / ideal)
        f["earliest finish above the best, of the ideal share"] = min(
            MOST, (end - least_finish) / ideal
        )
        f["share of placed neighbours' bytes there"] = (
            near[d] / near_total if near_total > 0.0 else 0.0
        )
        f["share of this op's inputs there"] = (
            num_local[d] / num_inputs if num_inputs > 0 else 0.0
        )
        f["load after, of the ideal share"] = min(MOST, load / ideal)
        f["load after, above the ideal share"] = min(MOST, max(0.0, load / ideal - 1.0))
        f["raise of the greatest load"] = min(
            MOST, max(0.0, (load - most_load) / ideal)
        )
        f["load above the least"] = min(MOST, (state.load[d] - least_load) / ideal)
        f["state after, of the memory"] = min(
            MOST, (state.state[d] + walk.unit_state[u]) / walk.memory[d]
        )
        f["state and tensors at the peak after, of the memory"] = min(
            MOST,
            f["state after, of the memory"]
            + (state.peak[d] + walk.unit_peak[u]) / walk.memory[d],
        )
        f["log slowness for this unit"] = (
            np.log(walk.unit_time[u, d] / least_time) if least_time > 0.0 else 0.0
        )
        f["log slowness for all units"] = (
            np.log(walk.device_time[d] / least_device) if least_device > 0.0 else 0.0
        )
        f["device still unused"] = 0.0 if state.used[d] else 1.0
        f["device of the decision before"] = 1.0 if d == current else 0.0
        f["work since the device changed, with this unit, there"] = (
            min(MOST, run) if d == current else 0.0
        )
        f["path through this op, of the bound"] = min(
            MOST, (end + walk.tail_seconds[i]) / walk.bound
        )
        f["link from the device before is busy"] = 0.0
        f["mean transfer from the device before, or to all"] = 0.0
        source = Index(current)
        target = Index(d)
        if current >= 0 and d != current and has_link(links, source, target):
            busy = (
                find_free_time(links, booked.channel_free, source, target) - least_start
            )
            f["link from the device before is busy"] = log_above(max(0.0, busy) / scale)
            f["mean transfer from the device before, or to all"] = log_above(
                seconds_between(links, source, target, walk.mean_bytes) / scale
            )
        elif current < 0:
            f["mean transfer from the device before, or to all"] = log_above(
                walk.far[d] / scale
            )
        f["one over the number of devices aimed at"] = 1.0 / limit
        f["devices aimed at, of all"] = limit / num_devices
        f["work decided, of all"] = progress
        f["devices used, of those aimed at"] = min(1.0, state.usage[0] / limit)
        f["work since the device changed, with this unit"] = min(MOST, run)
        f["the same above a chunk's share, there, in chunks"] = (
            min(MOST, over) if d == current else 0.0
        )
        f["one over the number of rounds aimed at"] = 1.0 / rounds
        f["another device than before, in chunks"] = (
            1.0 if goal.chunks and current >= 0 and d != current else 0.0
        )
        f["in chunks"] = goal.chunks
        f["the chunk plan's device"] = 1.0 if goal.chunks and goal.plan[u] == d else 0.0
        # Some aims ignore a feature, or replace it.
        if goal.chunks:
            f["earliest finish above the best, out of chunks"] = 0.0
        if goal.lean > 0:
            f["load after, above the ideal share"] = 0.0
        if goal.lean > 1:
            f["earliest finish above the best, out of chunks"] = f[
                "earliest start above the best"
            ]


DYNAMIC = list_feature_names(observe)
NUM_DYNAMIC = len(DYNAMIC)


@inner(fastmath={"contract", "reassoc"}, _nrt=False)
def score(weights: SingleArray, features: SingleArray, d: int) -> float:
    """Return the weighted sum of the features of candidate ``d``.

    Args:
        weights: Weight of each feature. [F]
        features: Features of the candidates. [D, F]
        d: The candidate.
    """
    total = np.float32(0.0)
    for f in range(len(weights)):
        total += features[d, f] * weights[f]
    return float(total)


@inner(_nrt=False)
def only(allowed: BoolArray) -> int:
    """Return the first candidate, or device 0 if there is none."""
    for d in range(len(allowed)):
        if allowed[d]:
            return d
    return 0


@inner(_nrt=False)
def greatest_score(
    weights: SingleArray,
    features: SingleArray,
    allowed: BoolArray,
    noise: SingleArray,
    unit: int,
) -> int:
    """Return the candidate with the greatest score.

    Args:
        weights: Weight of each feature. [F]
        features: Features of the candidates. [D, F]
        allowed: Whether a device is a candidate. [D]
        noise: Numbers that are added to the scores, or no rows. [U, D]
        unit: The unit that is decided.
    """
    best: float | np.floating = -np.inf
    choice = only(allowed)
    for d in range(len(allowed)):
        if allowed[d]:
            if len(noise) > 0:
                drawn = noise[unit, d]
            else:
                drawn = np.float32(0.0)
            value = score(weights, features, d) + drawn
            if value > best:
                best = value
                choice = d
    return choice


class Decoding(NamedTuple):
    """The settings of one decode.

    Attributes:
        order: The visited ops in the order of the walk. [m]
        goal: What the decode aims at.
        margin: Factor of the bytes at the peak, in the test whether a unit fits on a device.
        noise: Numbers that are added to the scores of each unit's candidates, or no rows. [U, D]
        forced: Device of each unit, -1 where the decoder decides. [U]
    """

    order: IntArray
    goal: Goal
    margin: float
    noise: SingleArray
    forced: IntArray


@inner(_nrt=False)
def look(
    walk: Walk,
    state: PartialSchedule,
    i: int,
    decoding: Decoding,
    room: DecisionRoom,
    record: DecisionRecord,
    count: int,
) -> int:
    """Find the candidates of a decision and their features, and record them if that is wanted.

    Args:
        walk: The problem, as flat arrays in the walk's direction.
        state: The schedule so far.
        i: The visited op whose unit is to be decided.
        decoding: The settings of the decode.
        room: Output: the candidates and their features.
        record: Output: the same, in row ``count``; without rows nothing is recorded.
        count: The number of decisions so far.

    Returns:
        The number of candidates; 1 if the device is forced and nothing is recorded.
    """
    goal = decoding.goal
    unit = walk.unit[i]
    recorded = len(record.features) > 0
    number = 1
    if recorded or decoding.forced[unit] < 0:
        number = candidates(
            walk, state, unit, goal.limit, decoding.margin, room.allowed
        )
    if recorded or number > 1:
        observe(walk, state, i, goal, room.allowed, room.scratch, room.features)
    if recorded:
        copy_rows(record.features[count], room.features)
        copy_to(record.masks[count], room.allowed)
        record.step[count] = i
    return number


@inner(_nrt=False)
def decide_all(
    walk: Walk,
    s: PartialSchedule,
    queue: ReadyQueue,
    weights: SingleArray,
    decoding: Decoding,
    record: DecisionRecord,
    room: DecisionRoom,
) -> int:
    """Run the loop of ``decode``, which allocates nothing. Return the number of decisions.

    Args:
        walk: The problem, as flat arrays in the walk's direction.
        s: The schedule to begin with; changed in place.
        queue: The ready ops, for rules that choose the next op by time.
        weights: Weight of each feature. [F]
        decoding: The settings of the decode.
        record: Output: every decision; without rows nothing is recorded.
        room: Buffers for one decision.
    """
    order = decoding.order
    goal = decoding.goal
    by_time = goal.rule != FIXED
    far = len(walk.unit) > FAR
    count = 0
    for k in range(len(walk.unit)):
        if by_time:
            i = next_op(walk, s, queue, order, goal.rule)
        else:
            i = order[k]
        if far:
            approach(walk, s, queue, order, k, by_time)
        u = walk.unit[i]
        # The first op of a unit decides for all of them.
        if s.device[u] < 0:
            choice = decoding.forced[u]
            number = look(walk, s, i, decoding, room, record, count)
            if choice < 0:
                choice = only(room.allowed)
                if number > 1:
                    choice = greatest_score(
                        weights, room.features, room.allowed, decoding.noise, u
                    )
            decide(walk, s, u, choice)
            count += 1
        book(walk, s, i)
        if by_time:
            release(queue, i, s.booked.finish[i])
    return count


@kernel
def decode(
    walk: Walk,
    weights: SingleArray,
    decoding: Decoding,
    record: DecisionRecord,
) -> tuple[PartialSchedule, int]:
    """Decide a device for every unit.

    Args:
        walk: The problem, as flat arrays in the walk's direction.
        weights: Weight of each feature. [F]
        decoding: The settings of the decode.
        record: Output: every decision; without rows nothing is recorded.

    Returns:
        The final state, and the number of decisions.
    """
    num_devices = walk.time.shape[1]
    s = start_state(walk)
    queue = start_queue(walk, decoding.order, decoding.goal.rule != FIXED)
    features = zero_single_table(num_devices, NUM_DYNAMIC)
    scratch = zero_table(SCRATCH, num_devices)
    room = DecisionRoom(zero_flags(num_devices), scratch, features)
    return s, decide_all(walk, s, queue, weights, decoding, record, room)
