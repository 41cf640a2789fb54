"""The decoder in numba: state of the partial schedule, features of candidates, scores, decisions.

``observe`` fills the features of every candidate device for one decision, ``decide`` and ``book``
change the state; the torch decoder calls the same three, so only the scoring exists twice.
The features are listed in ``features.DYNAMIC``, in the order in which ``observe`` writes them.

Complexity of a decode: O(D * (m + inputs + flows + decisions * (F H + H^2))).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnplace.policy.ready_queue import FIXED, next_op, release, start_queue
from gnnplace.policy.walk import Walk
from gnnplace.simulation.indices import ONE, Index

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

NUM_DYNAMIC = 35
MOST = 4.0  # ratios to the ideal share of a device are cut off here


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


@njit(cache=True, boundscheck=False, error_model="numpy")
def start_state(w: Walk) -> State:
    """The state before the first decision."""
    m, num_devices = w.time.shape
    return State(
        np.full(len(w.unit_work), -1, np.int32),
        np.full(m, -1.0),
        np.full((w.num_tensors, num_devices), -1.0),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.zeros(num_devices, np.bool_),
        np.zeros(w.num_channels),
        np.array([0, -1], np.int32),
        np.zeros(2),
    )


@njit(cache=True, boundscheck=False, error_model="numpy")
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
                        if w.flow_in[k] >= 0.0 and w.channel[e, d] < 0:
                            good = False
                        if w.flow_out[k] >= 0.0 and w.channel[d, e] < 0:
                            good = False
            allowed[d] = good
            count += good
        if count > 0:
            return count
    return 0


@njit(cache=True, boundscheck=False, error_model="numpy")
def log_above(value: float) -> float:
    """``log(1 + value)`` in single precision, as features are: a third of the time of ``log1p``."""
    return np.log(np.float32(1.0 + value))


@njit(cache=True, boundscheck=False, error_model="numpy")
def observe(w: Walk, s: State, i: int, goal: Goal, allowed: BoolArray, out: SingleArray) -> None:
    """Features of every candidate device for the unit of visited op ``i``. ``out``: [D, F]."""
    limit, rounds = goal.limit, goal.rounds
    num_devices, i = len(s.free), Index(i)
    u = Index(w.unit[i])
    scale, ideal = w.scale, w.work / limit
    run = (s.sums[1] + w.unit_work[u]) / (ideal / rounds)
    scratch = np.zeros((6, num_devices))
    ready, wait, move, here, near, flow = scratch
    inputs = 0
    for k in range(Index(w.before_offset[i]), Index(w.before_offset[i + ONE])):
        j, tensor = Index(w.before[k]), Index(w.before_tensor[k])
        if s.finish[j] < 0.0:
            continue
        inputs += 1
        e = Index(s.device[Index(w.unit[j])])
        for d in range(num_devices):
            if not allowed[d]:
                continue
            at = s.finish[j]
            if e == Index(d):
                here[d] += 1.0
            elif s.arrival[tensor, d] >= 0.0:
                here[d] += 1.0
                at = max(at, s.arrival[tensor, d])
            elif w.channel[e, d] >= 0:
                begin = max(s.channel_free[Index(w.channel[e, d])], at)
                seconds = w.before_size[k] * w.per_byte[e, d]
                wait[d] = max(wait[d], begin - at)
                move[d] += seconds + w.latency[e, d]
                at = begin + seconds + w.latency[e, d]
            ready[d] = max(ready[d], at)
    near_all = 0.0
    for k in range(Index(w.flow_offset[u]), Index(w.flow_offset[u + ONE])):
        if s.device[Index(w.flow_unit[k])] < 0:
            continue
        e = Index(s.device[Index(w.flow_unit[k])])
        into, out_of = max(w.flow_in[k], 0.0), max(w.flow_out[k], 0.0)
        near[e] += into + out_of
        near_all += into + out_of
        for d in range(num_devices):
            if allowed[d] and Index(d) != e:
                flow[d] += into * w.per_byte[e, d] + out_of * w.per_byte[d, e]
                if w.flow_in[k] >= 0.0:
                    flow[d] += w.latency[e, d]
                if w.flow_out[k] >= 0.0:
                    flow[d] += w.latency[d, e]
    least_start, least_finish, least_ready = np.inf, np.inf, np.inf
    least_time, least_load, most_load, least_device = np.inf, np.inf, 0.0, np.inf
    for d in range(num_devices):
        most_load = max(most_load, s.load[d])
        if allowed[d]:
            begin = max(s.free[d], ready[d])
            least_start = min(least_start, begin)
            least_finish = min(least_finish, begin + w.time[i, d])
            least_ready = min(least_ready, ready[d])
            least_time = min(least_time, w.unit_time[u, d])
            least_load = min(least_load, s.load[d])
            least_device = min(least_device, w.device_time[d])
    current = s.now[1]
    over = max(0.0, run - 1.0) if goal.chunks else 0.0
    progress = s.sums[0] / w.work
    for d in range(num_devices):
        f = out[d]
        if not allowed[d]:
            f[:] = 0.0
            continue
        begin = max(s.free[d], ready[d])
        end = begin + w.time[i, d]
        load = s.load[d] + w.unit_time[u, d]
        f[0] = log_above((end - least_finish) / scale)
        f[1] = log_above((begin - least_start) / scale)
        f[2] = log_above((ready[d] - least_ready) / scale)
        f[3] = log_above((begin - s.free[d]) / scale)
        f[4] = log_above(wait[d] / scale)
        f[5] = log_above(move[d] / scale)
        f[6] = log_above(flow[d] / scale)
        f[7] = min(MOST, flow[d] / ideal)
        f[8] = min(MOST, (end - least_finish) / ideal)
        f[9] = near[d] / near_all if near_all > 0.0 else 0.0
        f[10] = here[d] / inputs if inputs > 0 else 0.0
        f[11] = min(MOST, load / ideal)
        f[12] = min(MOST, max(0.0, load / ideal - 1.0))
        f[13] = min(MOST, max(0.0, (load - most_load) / ideal))
        f[14] = min(MOST, (s.load[d] - least_load) / ideal)
        f[15] = min(MOST, (s.state[d] + w.unit_state[u]) / w.memory[d])
        f[16] = min(MOST, f[15] + (s.peak[d] + w.unit_peak[u]) / w.memory[d])
        f[17] = np.log(w.unit_time[u, d] / least_time) if least_time > 0.0 else 0.0
        f[18] = np.log(w.device_time[d] / least_device) if least_device > 0.0 else 0.0
        f[19] = 0.0 if s.used[d] else 1.0
        f[20] = 1.0 if d == current else 0.0
        f[21] = min(MOST, run) if d == current else 0.0
        f[22] = min(MOST, (end + w.after[i]) / w.bound)
        f[23] = 0.0
        f[24] = 0.0
        if current >= 0 and d != current and w.channel[current, d] >= 0:
            busy = s.channel_free[w.channel[current, d]] - least_start
            f[23] = log_above(max(0.0, busy) / scale)
            far = w.latency[current, d] + w.mean_bytes * w.per_byte[current, d]
            f[24] = log_above(far / scale)
        elif current < 0:
            f[24] = log_above(w.far[d] / scale)
        f[25] = 1.0 / limit
        f[26] = limit / num_devices
        f[27] = progress
        f[28] = min(1.0, s.now[0] / limit)
        f[29] = min(MOST, run)
        f[30] = min(MOST, over) if d == current else 0.0
        f[31] = 1.0 / rounds
        f[32] = 1.0 if goal.chunks and current >= 0 and d != current else 0.0
        f[33] = goal.chunks
        f[34] = 1.0 if goal.chunks and goal.plan[u] == d else 0.0
        if goal.chunks:
            f[0] = 0.0
        if goal.lean > 0:
            f[12] = 0.0
        if goal.lean > 1:
            f[0] = f[1]


@njit(cache=True, boundscheck=False, error_model="numpy")
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


@njit(cache=True, boundscheck=False, error_model="numpy")
def book(w: Walk, s: State, i: int) -> None:
    """Appends visited op ``i`` to the schedule of its device, its inputs to the links' queues."""
    i = Index(i)
    d = Index(s.device[Index(w.unit[i])])
    ready = 0.0
    for k in range(Index(w.before_offset[i]), Index(w.before_offset[i + ONE])):
        j, tensor = Index(w.before[k]), Index(w.before_tensor[k])
        at = s.finish[j]
        if at < 0.0:
            continue
        e = Index(s.device[Index(w.unit[j])])
        if e != d:
            if s.arrival[tensor, d] < 0.0 and w.channel[e, d] >= 0:
                channel = Index(w.channel[e, d])
                end = max(s.channel_free[channel], at) + w.before_size[k] * w.per_byte[e, d]
                s.channel_free[channel] = end
                s.arrival[tensor, d] = end + w.latency[e, d]
            at = max(at, s.arrival[tensor, d])
        ready = max(ready, at)
    time = w.time[i, d] if np.isfinite(w.time[i, d]) else w.scale
    s.finish[i] = max(s.free[d], ready) + time
    s.free[d] = s.finish[i]


@njit(cache=True, boundscheck=False, error_model="numpy", fastmath={"contract", "reassoc"})
def score(
    p: Weights,
    context: SingleArray,
    features: SingleArray,
    allowed: BoolArray,
    hidden: SingleArray,
    out: SingleArray,
) -> None:
    """Score of each candidate, -inf for others.

    Matrix products go to BLAS, four times as fast as loops here on eight devices. With H = 0 (see
    ``Decoder.weights``) scores are weighted sums of features.

    Args:
        p: the decoder's parameters.
        context: what the encoder says of the op. [H]
        features: of each candidate. [D, F]
        allowed: the candidates, at least one. [D]
        hidden: scratch. [2 D + 2, H]
        out: out: scores. [D]
    """
    num_devices, num_features = features.shape
    size, zero = len(p.bias), np.float32(0.0)
    if size == 0:
        for d in range(num_devices):
            total = zero if allowed[d] else -np.float32(np.inf)
            if allowed[d]:
                for f in range(num_features):
                    total += features[d, f] * p.skip[f]
            out[d] = total
        return
    count = allowed.sum()
    some = 2 * count <= num_devices  # Few enough for a copy of their rows to pay.
    rows = features[np.flatnonzero(allowed)] if some else features
    num_rows = len(rows)
    first, second = hidden[:num_rows], hidden[num_rows : 2 * num_rows]
    mean, common = hidden[2 * num_rows], hidden[2 * num_rows + 1]
    np.dot(rows, p.first, first)
    mean[:] = zero
    for i in range(num_rows):
        if some or allowed[i]:
            for h in range(size):
                first[i, h] = max(first[i, h] + context[h], zero)
                mean[h] += first[i, h]
    for h in range(size):
        mean[h] /= np.float32(count)
    np.dot(mean, p.pooled, common)
    np.dot(first, p.second, second)
    i = 0
    for d in range(num_devices):
        if not allowed[d]:
            out[d] = -np.inf
            i += 0 if some else 1
            continue
        total = zero
        for h in range(size):
            total += max(second[i, h] + common[h] + p.bias[h], zero) * p.last[h]
        for f in range(num_features):
            total += features[d, f] * p.skip[f]
        out[d] = total
        i += 1


@njit(cache=True, boundscheck=False, error_model="numpy")
def decode(
    w: Walk,
    p: Weights,
    context: SingleArray,
    order: IntArray,
    goal: Goal,
    margin: float,
    noise: SingleArray,
    forced: IntArray,
    features: SingleArray,
    masks: BoolArray,
    step: IntArray,
) -> tuple[State, int]:
    """Decides a device for every unit.

    Args:
        w: the problem.
        p: the decoder's parameters.
        context: what the encoder says of each visited op. [m, H]
        order: visited ops in the order of the walk. [m]
        goal: what to aim at.
        margin: on the bytes at the peak, for the memory mask.
        noise: added to the scores of each unit's candidates. [U, D], or no rows
        forced: device of each unit, -1 for the decoder's choice. [U]
        features: out: features of each decision. [U, D, F], or no rows if not wanted
        masks: out: candidates of each decision. [U, D], as ``features``
        step: out: visited op of each decision. [U], as ``features``

    Returns:
        The final state, and the number of decisions.
    """
    num_devices = w.time.shape[1]
    s = start_state(w)
    now = np.zeros((num_devices, NUM_DYNAMIC), np.float32)
    allowed = np.zeros(num_devices, np.bool_)
    hidden = np.zeros((2 * num_devices + 2, len(p.bias)), np.float32)
    scores = np.zeros(num_devices, np.float32)
    record, noisy = len(features) > 0, len(noise) > 0
    count, m = 0, len(w.unit)
    by_time = goal.rule != FIXED
    queue = start_queue(w, order, by_time)
    for k in range(m):
        i = next_op(w, s, queue, order, goal.rule) if by_time else order[k]
        u = w.unit[i]
        if s.device[u] < 0:
            choice, number = forced[u], 1
            if record or choice < 0:
                number = candidates(w, s, u, goal.limit, margin, allowed)
            if record or number > 1:
                observe(w, s, i, goal, allowed, now)
            if record:
                features[count] = now
                masks[count] = allowed
                step[count] = i
            if choice < 0:
                choice = int(np.argmax(allowed))
                if number > 1:
                    score(p, context[i], now, allowed, hidden, scores)
                    best = -np.inf
                    for d in range(num_devices):
                        value = scores[d] + noise[u, d] if noisy else scores[d]
                        if allowed[d] and value > best:
                            best, choice = value, d
            decide(w, s, u, choice)
            count += 1
        book(w, s, i)
        if by_time:
            release(queue, i, s.finish[i])
    return s, count
