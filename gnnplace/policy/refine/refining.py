"""Refinement: a second walk over a finished placement, each unit's device decided anew.

Formulation: the decoder walks the ops of a *previous* placement by their start times. What comes
before an op is decided and booked anew; what comes after it is taken to stay where it was. So a
candidate device is seen between two schedules that know their queues: the partial one (when could
the op start there?) and the previous one (how far is it from there to the end, by its consumers and
by what that device does next?). Their sum is the length of the path through the op, on that device;
HEFT and its successors (PEFT, Arabnejad and Barbosa, 2014) estimate the second part from mean
costs. A pass backwards is the same on the reversed problem.

A unit leaves its previous device only for a score that is ``stay`` better. Scores are in percent of
the step time, a weighted sum of features (path, load, transfers, memory) whose weights are learned.

After a pass the new devices get three orders: as they were booked, by list scheduling with the
previous distances to the end, and the better one justified; the best by simulation counts, and
the placement is kept if it is better than the previous one.
Complexity of a pass: O(D (n + inputs + flows)) and a handful of list schedules and simulations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import IntArray, SingleArray
from gnnplace.graph import (
    ONE,
    Index,
    copy_rows,
    copy_to,
    greatest,
    inner,
    kernel,
    zero_flags,
    zero_single_table,
    zero_table,
)
from gnnplace.placers import compute_energy
from gnnplace.policy.decode.decoder_state import (
    EXTRA,
    MOVE,
    READY,
    SENDING,
    WAIT,
    DecisionRecord,
    DecisionRoom,
    InputTensor,
    foresee,
)
from gnnplace.policy.decode.kernels import MOST, log_above, score
from gnnplace.policy.naming import NamedRow, list_feature_names, name_columns
from gnnplace.policy.refine.refining_state import (
    Ground,
    Partial,
    Placed,
    Previous,
    RefiningUnits,
    book,
    next_distance,
    settle,
    sort_by_start,
    start_pass,
)
from gnnplace.simulation import (
    DELAY,
    PACE,
    Compiled,
    has_link,
    justify,
    list_schedule,
    seconds_between,
)

PRIOR = {  # in percent of the step time, but for memory
    "path through the op there, above nearly the step time": -100.0,
    "path through the op there": -30.0,
    "transfers of the op, of the step time": -30.0,
    "load after, of the step time": -30.0,
    "memory after, above the limit": -1000.0,
}
TAIL, FLOW, NEAR, MOVED, PATH, REST = range(SENDING + 1, SENDING + 7)
SCRATCH = REST + 1  # numbers a device that ``observe`` adds up
NEARLY = 0.98  # Relative to the step time: shorter paths are not critical


@inner(_nrt=False)
@name_columns("f")
def observe(
    compiled: Compiled,
    units: RefiningUnits,
    previous: Previous,
    partial: Partial,
    op: int,
    room: DecisionRoom,
) -> int:
    """Write candidates and their features for the unit of ``op`` into ``room``; return how many
    there are.
    """
    allowed, scratch, out = room
    num_devices = len(partial.load)
    i = Index(op)
    booked = partial.booked
    u = Index(compiled.unit_of[i])
    old = previous.device[u]
    old_device = Index(old)
    total = previous.seconds
    back = previous.back
    links = compiled.links
    for k in range(SCRATCH):
        for d in range(num_devices):
            scratch[k, d] = 0.0
    ready = scratch[READY]
    wait = scratch[WAIT]
    move = scratch[MOVE]
    extra = scratch[EXTRA]
    sending = scratch[SENDING]
    tail = scratch[TAIL]
    flow = scratch[FLOW]
    near = scratch[NEAR]
    moved_bytes = scratch[MOVED]
    path = scratch[PATH]
    op_path = scratch[REST]
    if back:
        producer = units.reversed_producer
    else:
        producer = units.producer
    for d in range(num_devices):
        allowed[d] = units.allowed[u, d]
    # What the unit exchanges with its neighbours; a device without a link to one is no candidate.
    bytes_all = 0.0
    for k in range(Index(units.offset[u]), Index(units.offset[u + ONE])):
        v = Index(units.neighbour[k])
        is_decided = partial.device[v] >= 0
        e = Index(partial.device[v] if is_decided else previous.device[v])
        into = units.forth[back, k]
        out_of = units.forth[1 - back, k]
        both = max(into, 0.0) + max(out_of, 0.0)
        bytes_all += both
        near[e] += both
        if is_decided and partial.device[v] != previous.device[v]:
            moved_bytes[e] += both
        for d in range(num_devices):
            target = Index(d)
            if not allowed[d] or target == e:
                continue
            if into >= 0.0:
                flow[d] += seconds_between(links, e, target, into)
            if out_of >= 0.0:
                flow[d] += seconds_between(links, target, e, out_of)
            if d != old and (
                (into >= 0.0 and not has_link(links, e, target))
                or (out_of >= 0.0 and not has_link(links, target, e))
            ):
                allowed[d] = False
    count = 0
    for d in range(num_devices):
        count += allowed[d]
    if count < 2:
        return count
    # When the op's inputs are on each device, and what it takes to bring them there.
    for k in range(
        Index(compiled.input_offset[i]), Index(compiled.input_offset[i + ONE])
    ):
        tensor = Index(compiled.input_tensor[k])
        j = Index(producer[tensor])
        e = Index(partial.device[Index(compiled.unit_of[j])])
        input_tensor = InputTensor(j, tensor, compiled.size[tensor], e)
        for d in range(num_devices):
            if allowed[d]:
                foresee(links, booked, input_tensor, Index(d), 0.0, scratch)
    # How far it is from there to the end by the op's consumers.
    for k in range(
        Index(compiled.flow_offset[i]), Index(compiled.flow_offset[i + ONE])
    ):
        j = Index(compiled.flow_op[k])
        v = Index(compiled.unit_of[j])
        if partial.device[v] >= 0:
            at_v = partial.device[v]
        else:
            at_v = previous.device[v]
        for d in range(num_devices):
            if not allowed[d]:
                continue
            e = Index(d) if v == u else Index(at_v)
            seconds = 0.0
            if e != Index(d):
                seconds = compiled.flow_size[k] * links.costs[d, e, PACE]
                move[d] += seconds
                seconds += links.costs[d, e, DELAY]
            tail[d] = max(tail[d], previous.distance[j] + seconds)
    # The best of all candidates, which features compare each one with, and the path through each.
    most_load = 0.0
    least_start = np.inf
    least_finish = np.inf
    least_time = np.inf
    ideal = 0.0
    for d in range(num_devices):
        most_load = max(most_load, partial.load[d])
        ideal += partial.load[d] / num_devices
        if allowed[d]:
            begin = max(booked.free[d], ready[d]) + extra[d]
            end = begin + compiled.times[i, d]
            least_start = min(least_start, begin)
            least_finish = min(least_finish, end)
            least_time = min(least_time, units.time[u, d])
            end += sending[d]  # what it keeps senders from
            op_path[d] = end + tail[d]
            path[d] = end + max(
                tail[d], next_distance(compiled, partial, previous, d, u)
            )
    ideal = max(ideal, 1e-300)
    walked = partial.counts[0] / len(booked.finish)
    share = partial.counts[2] / max(1, partial.counts[1])
    # The features of each candidate.
    tight = greatest(previous.peak) > 0.0
    for d in range(num_devices):
        f: NamedRow = out[d]
        if not allowed[d]:
            for k in range(len(f)):
                f[k] = 0.0
            continue
        begin = max(booked.free[d], ready[d]) + extra[d]
        load = partial.load[d]
        peak = partial.peak[d] / compiled.memory[d]
        if d != old:
            load += units.time[u, d]
            peak += units.memory[u] / compiled.memory[d] if tight else 0.0
        f["previous device"] = 1.0 if d == old else 0.0
        f["path through the op there, above nearly the step time"] = min(
            MOST, max(0.0, path[d] / total - NEARLY)
        )
        f["path through the op there"] = min(MOST, path[d] / total - 1.0)
        f["path by its consumers alone"] = min(MOST, op_path[d] / total - 1.0)
        f["start above the best"] = log_above((begin - least_start) / units.scale)
        f["finish above the best"] = log_above(
            (begin + compiled.times[i, d] - least_finish) / units.scale
        )
        f["idle gap"] = log_above((begin - booked.free[d]) / units.scale)
        f["wait for links"] = log_above(wait[d] / units.scale)
        f["transfers of the op, of the step time"] = min(MOST, move[d] / total)
        f["transfers of the op, above the previous device's"] = max(
            -MOST, min(MOST, (move[d] - move[old_device]) / total)
        )
        f["transfers of the unit, of the step time"] = min(MOST, flow[d] / total)
        f["transfers of the unit, above the previous device's"] = max(
            -MOST, min(MOST, (flow[d] - flow[old_device]) / total)
        )
        f["share of neighbours' bytes there"] = (
            near[d] / bytes_all if bytes_all > 0.0 else 0.0
        )
        f["share of neighbours' bytes there that this pass moved there"] = (
            moved_bytes[d] / bytes_all if bytes_all > 0.0 else 0.0
        )
        f["load after, of the step time"] = min(MOST, load / total)
        f["load after, of the ideal share"] = min(MOST, load / ideal)
        f["raise of the greatest load"] = min(MOST, max(0.0, load - most_load) / total)
        f["log slowness for this unit"] = (
            np.log(units.time[u, d] / least_time) if least_time > 0.0 else 0.0
        )
        f["memory after"] = min(MOST, peak)
        f["memory after, above the limit"] = min(MOST, max(0.0, peak - 1.0))
        f["critical"] = previous.critical[u]
        f["path on the previous device"] = min(MOST, path[old_device] / total - 1.0)
        f["work of the unit, of the ideal share"] = min(MOST, units.work[u] / ideal)
        f["device is unused"] = 1.0 if partial.load[d] <= 0.0 else 0.0
        f["share of the ops walked"] = walked
        f["share of the units decided that moved"] = share
        f["backwards"] = float(back)
        f["log micro-batches"] = log_above(units.microbatches - 1.0)
        f["devices"] = num_devices / 8.0
    return count


REFINING = list_feature_names(observe)
NUM_REFINING = len(REFINING)


class Refiner(NamedTuple):
    """The policy that decides the devices of a pass.

    Attributes:
        weights: The weight of each feature. [F]
        stay: Percent that a device must be better than the previous one.
        noise: Scale of Gumbel noise on the scores, in percent.
        forced: Device of each unit, -1 where the refiner decides. [U]
    """

    weights: SingleArray
    stay: float
    noise: float
    forced: IntArray


@kernel
def walk_again(
    compiled: Compiled,
    units: RefiningUnits,
    previous: Previous,
    refiner: Refiner,
    record: DecisionRecord,
) -> tuple[Partial, int]:
    """Walk a placement and decide each unit's device anew.

    Args:
        compiled: the problem in the pass's direction.
        units: what is looked up of units.
        previous: what is known of the placement, in the pass's direction.
        refiner: what decides.
        record: Output: what training learns from; the ``step`` of a decision is its unit.

    Returns:
        The schedule, and the number of decisions that had a choice.
    """
    weights, stay, noise, forced = refiner
    features, masks, decided = record
    num_devices = compiled.times.shape[1]
    s = start_pass(compiled, units, previous)
    if previous.back:
        producer = units.reversed_producer
    else:
        producer = units.producer
    observed = zero_single_table(num_devices, NUM_REFINING)
    scratch = zero_table(SCRATCH, num_devices)
    allowed = zero_flags(num_devices)
    room = DecisionRoom(allowed, scratch, observed)
    count = 0
    for op in previous.order:
        # 1. A unit is decided when the first of its ops comes; where there is no choice it stays.
        u = compiled.unit_of[op]
        if s.device[u] < 0:
            choice = old = previous.device[u]
            if forced[u] >= 0:
                choice = forced[u]
            elif observe(compiled, units, previous, s, op, room) > 1:
                # 2. What training learns from: the decision as it is seen now.
                if len(features) > 0:
                    copy_rows(features[count], observed)
                    copy_to(masks[count], allowed)
                    decided[count] = u
                count += 1
                # 3. The device of most score, ``stay`` percent better than the one it leaves.
                if allowed[old]:
                    best = score(weights, observed, old) + stay
                else:
                    best = -np.inf
                for d in range(num_devices):
                    if allowed[d] and d != old:
                        value = score(weights, observed, d)
                        if noise > 0.0:
                            value -= noise * np.log(
                                -np.log(np.random.random() + 1e-12) + 1e-12
                            )
                        if value > best:
                            best = value
                            choice = d
            settle(units, previous, s, u, choice)
        # 4. The op is booked where its unit is, so that the next ones see when it ends.
        book(compiled, producer, s, op)
    return s, count


def improve_order(
    ground: Ground, partial: Partial, previous: Previous, trial: Placed
) -> None:
    """Give the devices of a finished pass their best order, and score them."""
    trial.device[:] = partial.device[ground.c.unit_of]
    if previous.back:
        priority = partial.booked.finish
    else:
        priority = previous.distance
    order = list_schedule(ground.c, trial.device, priority)
    best = compute_energy(ground.c, ground.h, trial.device, order, np.inf)
    if not previous.back:
        booked = sort_by_start(previous.order, partial.start)
        score = compute_energy(ground.c, ground.h, trial.device, booked, best)
        if score < best:
            best = score
            order = booked
    justified = justify(ground.c, ground.r, trial.device, order)
    score = compute_energy(ground.c, ground.h, trial.device, justified, best)
    if score < best:
        best = score
        order = justified
    trial.order[:] = order
    trial.score[0] = best


def one_pass(
    ground: Ground,
    previous: Previous,
    trial: Placed,
    stay: float,
    noise: float,
    forced: IntArray,
) -> int:
    """Walk a placement once; return how many units moved. The result is in ``trial``, unchanged if
    none moved.

    Args:
        ground: what all passes over the problem share.
        previous: the placement, read in the direction of the pass.
        trial: Output: the placement after the pass.
        stay: percent that a device must be better than the previous one.
        noise: scale of Gumbel noise on the scores, in percent.
        forced: device of each unit, -1 where the refiner decides. [U]
    """
    none = np.empty((0, 0, 0), np.float32)
    no = np.empty((0, 0), np.bool_)
    nothing = np.empty(0, np.int32)
    refiner = Refiner(
        weights=ground.weights,
        stay=stay,
        noise=noise,
        forced=forced,
    )
    record = DecisionRecord(none, no, nothing)
    compiled = ground.r if previous.back else ground.c
    s = walk_again(compiled, ground.units, previous, refiner, record)[0]
    if s.counts[2] > 0:
        improve_order(ground, s, previous, trial)
    return int(s.counts[2])
