"""Moves of units to a device, as the policy sees them: features from the schedule as it is.

A move is a set of units and a target. Everything is relative: to the step time, to a device's
memory, to the number of devices; so one network serves graphs and clusters of any size.
Complexity: O(ops of the units and their edges) a move.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.jit import inner
from gnnplace.policy.naming import NamedRow, named_columns, names_of
from gnnplace.policy.search.schedule import BINS, Schedule
from gnnplace.search.moves import Neighbourhood
from gnnplace.simulation.arrays import greatest
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.indices import Index
from gnnplace.simulation.transfer import seconds_between

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

MANY = 100.0  # logarithms are of one plus hundredths of the step time


@inner(_nrt=False)
def signed_log(value: float) -> float:
    """Sign times log of one plus the magnitude in hundredths."""
    return np.sign(value) * np.log1p(MANY * abs(value))


@inner(_nrt=False)
@named_columns("out")
def describe(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    schedule: Schedule,
    device: IntArray,
    unit_device: IntArray,
    units: IntArray,
    target: int,
    inside: BoolArray,
    out: NamedRow,
) -> int:
    """Features of moving ``units`` to ``target``; how many units really move.

    Args:
        compiled: the problem.
        neighbourhood: units and their ops.
        schedule: the schedule as it is.
        device: device of each op. [n]
        unit_device: device of each unit. [U]
        units: units of the move.
        target: where to.
        inside: scratch, all False. [U]
        out: the features. [len(MOVE_FEATURES)]
    """
    step_time, links = schedule.seconds[0], compiled.links
    for u in units:
        inside[u] = neighbourhood.allowed[u, target]
    count, away, there, critical, most = 0, 0.0, 0.0, 0.0, 0.0
    load, memory, into = 0.0, 0.0, 0.0
    change, critical_change, now, edges, near, local = 0.0, 0.0, 0.0, 0, 0, 0
    idle, taken = 0.0, 0.0
    for u in units:
        a = unit_device[u]
        if a == target or not neighbourhood.allowed[u, target]:
            continue
        count += 1
        most = max(most, schedule.unit_weight[u])
        load = max(load, schedule.load[a])
        memory = max(memory, schedule.held[a] / compiled.memory[a])
        for k in range(neighbourhood.op_offset[u], neighbourhood.op_offset[u + 1]):
            op = neighbourhood.ops[k]
            seconds = compiled.times[op, target]
            away += compiled.times[op, a]
            there += seconds
            critical += compiled.times[op, a] * schedule.weight[op]
            into += compiled.state[op]
            b = min(
                BINS - 1, int(0.5 * (schedule.start[op] + schedule.finish[op]) / step_time * BINS)
            )
            idle += seconds * (1.0 - schedule.busy[target, b])
            taken += seconds * schedule.critical[target, b]
            for i in range(compiled.flow_offset[op], compiled.flow_offset[op + 1]):
                other = compiled.flow_op[i]
                v = compiled.unit_of[other]
                if v == u:
                    continue
                e = device[other]
                goal = target if inside[v] else e
                before, after = 0.0, 0.0
                if e != a:
                    before = seconds_between(links, Index(a), Index(e), compiled.flow_size[i])
                if goal != target:
                    after = seconds_between(
                        links, Index(target), Index(goal), compiled.flow_size[i]
                    )
                    into += compiled.flow_size[i]
                now += before
                change += after - before
                critical_change += min(schedule.weight[op], schedule.weight[other]) * (
                    after - before
                )
                edges += 1
                near += goal == target
                local += e == a
            for j in range(compiled.input_offset[op], compiled.input_offset[op + 1]):
                tensor = compiled.input_tensor[j]
                other = neighbourhood.producer[tensor]
                v = compiled.unit_of[other]
                if v == u or inside[v]:
                    continue
                e = device[other]
                before, after = 0.0, 0.0
                if e != a:
                    before = seconds_between(links, Index(e), Index(a), compiled.size[tensor])
                if e != target:
                    after = seconds_between(links, Index(e), Index(target), compiled.size[tensor])
                now += before
                change += after - before
                critical_change += min(schedule.weight[op], schedule.weight[other]) * (
                    after - before
                )
                edges += 1
                near += e == target
                local += e == a
    for u in units:
        inside[u] = False
    out["log units"] = np.log(count + 1.0)
    out["work there now"] = min(2.0, away / step_time)
    out["work at the target"] = min(2.0, there / step_time)
    out["greatest load of their devices"] = load / step_time
    out["load of the target"] = schedule.load[target] / step_time
    out["load of the target after"] = min(3.0, (schedule.load[target] + there) / step_time)
    out["load of their devices after"] = (load - away) / step_time
    out["greatest load of all"] = greatest(schedule.load) / step_time
    out["share of their work that is critical"] = critical / away if away > 0.0 else 0.0
    out["most critical"] = most
    out["change of transfers, signed log"] = signed_log(change / step_time)
    out["the same on critical edges, signed log"] = signed_log(critical_change / step_time)
    out["share of the target that is idle when they run"] = idle / there if there > 0.0 else 0.0
    out["share of the target that is critical when they run"] = (
        taken / there if there > 0.0 else 0.0
    )
    out["share of edges that end at the target"] = near / edges if edges > 0 else 0.0
    out["share of edges that are local now"] = local / edges if edges > 0 else 0.0
    out["log slowness of the target"] = np.log(there / away) if there > 0.0 and away > 0.0 else 0.0
    out["target is empty"] = 1.0 if schedule.load[target] == 0.0 else 0.0
    out["log critical work"] = np.log1p(MANY * critical / step_time)
    out["log work"] = np.log1p(MANY * away / step_time)
    out["load of the target above the step time"] = 10.0 * max(
        0.0, min(2.0, (schedule.load[target] + there) / step_time) - 1.0
    )
    out["log devices"] = np.log(len(schedule.load))
    out["one over units"] = 1.0 / (1.0 + count)
    out["log transfers now"] = np.log1p(MANY * now / step_time)
    out["memory of the target after"] = min(
        2.0, (schedule.held[target] + into) / max(1.0, compiled.memory[target])
    )
    out["memory of their devices"] = min(2.0, memory)
    return count


MOVE_FEATURES = names_of(describe)
NUM_MOVE_FEATURES = len(MOVE_FEATURES)
