"""The decoder in numba: features of candidates, scores, decisions.

``observe`` fills the features of every candidate device for one decision, each by its name
(``DYNAMIC`` lists them in that order). The candidate whose weighted sum of features is greatest is
taken; ``decide`` and ``book`` (``decoder_state``) change the state.

Complexity of a decode: O(D * (m + inputs + flows + decisions * F)).
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
from gnnplace.policy.naming import NamedRow, list_feature_names, named_columns
from gnnplace.simulation import DELAY, PACE, find_free_time, linked, seconds_between

HERE, NEAR, FLOW = range(SENDING + 1, SENDING + 4)
SCRATCH = FLOW + 1  # numbers a device that ``observe`` adds up
MOST = 4.0  # ratios to the ideal share of a device are cut off here


@inner(_nrt=False)
def log_above(value: float) -> float:
    """Return ``log(1 + value)`` in single precision, as features are: a third of the time of
    ``log1p``.
    """
    return np.log(np.float32(1.0 + value))


@inner(_nrt=False)
@named_columns("f")
def observe(
    walk: Walk,
    state: PartialSchedule,
    i: int,
    goal: Goal,
    allowed: BoolArray,
    scratch: FloatArray,
    out: SingleArray,
) -> None:
    """Write the features of every candidate device for the unit of visited op ``i``. ``out``: [D,
    F].

    ``scratch``: room for ``SCRATCH`` numbers a device. [SCRATCH, D]
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
    # When the op's inputs are on each device, and what it takes to bring them there.
    inputs = 0
    for k in range(Index(walk.before_offset[i]), Index(walk.before_offset[i + ONE])):
        j = Index(walk.before_op[k])
        tensor = Index(walk.before_tensor[k])
        if booked.finish[j] < 0.0:
            continue
        inputs += 1
        e = Index(state.device[Index(walk.unit[j])])
        size = walk.before_size[k]
        input_tensor = InputTensor(j, tensor, size, e)
        for d in range(num_devices):
            if allowed[d] and foresee(
                links, booked, input_tensor, Index(d), 1.0, scratch
            ):
                num_local[d] += 1.0
    # What the unit exchanges with its placed neighbours.
    near_all = 0.0
    for k in range(Index(walk.flow_offset[u]), Index(walk.flow_offset[u + ONE])):
        if state.device[Index(walk.flow_unit[k])] < 0:
            continue
        e = Index(state.device[Index(walk.flow_unit[k])])
        into = max(walk.flow_in[k], 0.0)
        out_of = max(walk.flow_out[k], 0.0)
        near[e] += into + out_of
        near_all += into + out_of
        for d in range(num_devices):
            if allowed[d] and Index(d) != e:
                flow[d] += (
                    into * links.costs[e, d, PACE] + out_of * links.costs[d, e, PACE]
                )
                if walk.flow_in[k] >= 0.0:
                    flow[d] += links.costs[e, d, DELAY]
                if walk.flow_out[k] >= 0.0:
                    flow[d] += links.costs[d, e, DELAY]
    # The best of all candidates, which features compare each one with.
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
    # The features of each candidate.
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
        end = begin + walk.time[i, d] + sending[d]  # with what it keeps senders from
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
            near[d] / near_all if near_all > 0.0 else 0.0
        )
        f["share of this op's inputs there"] = (
            num_local[d] / inputs if inputs > 0 else 0.0
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
        if current >= 0 and d != current and linked(links, source, target):
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
    """Return the weighted sum of the features of candidate ``d``. [F], [D, F]"""
    total = np.float32(0.0)
    for f in range(len(weights)):
        total += features[d, f] * weights[f]
    return float(total)


@inner(_nrt=False)
def only(allowed: BoolArray) -> int:
    """Return the first candidate, or the first device where there is none."""
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
    """Return the candidate of the greatest score; arguments as of ``decode``. ``features``:
    [D, F]
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
    """Settings of one decode.

    Attributes:
        order: Visited ops in the order of the walk. [m]
        goal: What to aim at.
        margin: On the bytes at the peak, for the memory mask.
        noise: Added to the scores of each unit's candidates. [U, D], or no rows
        forced: Device of each unit, -1 for the decoder's choice. [U]
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
    """Find the candidates of a decision and their features; record them where there are rows for
    it.

    Args:
        walk: the problem, as flat arrays in the walk's direction.
        state: the schedule so far.
        i: the visited op whose unit is to be decided.
        decoding: what is aimed at, and which devices are forced.
        room: Output: the candidates and their features.
        record: Output: the same in row ``count``, if there are rows.
        count: the number of decisions so far.

    Returns:
        The number of candidates; 1 where nothing has to be decided or recorded.
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
    """Run the loop of ``decode``, where nothing is allocated; return the number of decisions.

    Arguments are those of ``decode`` and of ``look``, and the state and the queue to begin with.
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
        walk: the problem, as flat arrays in the walk's direction.
        weights: the weight of each feature. [F]
        decoding: Order, aims, and forced devices.
        record: Output: every decision, or no rows if not wanted.

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
