"""Aims: the settings of a decode, and the list of all settings for a problem.

An **aim** is a traversal order, a number of devices, a number of rounds (runs of consecutive work
on a device) and the decoder's preference. The first aims of the list are tried.

Chunk plans: the cuts of the units for a pipeline with a number of devices and rounds.

Formulation: units in the order of ``WalkGraph.unit_order`` are cut into k r chunks; chunk c is for
device c mod k. A chunk costs the larger of its work there and the transfers over its two cuts, plus
a little of the smaller, plus a large penalty on bytes that do not fit. The plan minimises the
largest cost of a chunk, V(c, j) = min over i <= j of max(V(c - 1, i), cost of i..j): the bottleneck
partition of PipeDream (Narayanan et al., 2019). Deviations: transfers use the cluster's mean link;
if there are many units, only the cheapest cut of each of ``MOST_CUTS`` stretches of equal work is
considered. If memory is tight and nothing is pipelined, costs are added instead, which gives the
fewest transfers that fit. The plan is a feature that the decoder sees; the policy need not follow
it.
Complexity: O(edges + k r MOST_CUTS^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import (
    COORDINATE,
    EARLY,
    IN_TIME,
    empty_ints,
    full_table,
    greatest,
    kernel,
    zero_int_table,
)
from gnnplace.placers import device_ranking
from gnnplace.policy.decode import ready_queue
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.problem import Problem
from gnnplace.simulation import mean_transfer_times

# The decoder picks the next op itself: see ``ready_queue``.
RULES = {IN_TIME: ready_queue.IN_TIME, EARLY: ready_queue.EARLY}
DECODED = (
    "upward-rank",
    "downward-rank",
    "reverse-upward-rank",
    IN_TIME,
    EARLY,
    COORDINATE,
)
LEANS = ("", ", whatever the load", ", early starts")
ANY_LOAD = 1  # index in ``LEANS``
LEAN_ORDERS = ("upward-rank", IN_TIME)
ROUNDS = (1, 2, 3)
# Up to as many devices, micro-batches get an aim for every number of devices.
MOST_EVERY = 8


@dataclass(frozen=True)
class Aim:
    """The aim of a decode: order, number of devices, rounds, and leaning.

    Attributes:
        order: the order of the walk.
        limit: the number of devices to use.
        rounds: runs of consecutive work a device.
        lean: index in ``LEANS``: what the decoder leans to.
    """

    order: str
    limit: int
    rounds: int = 1
    lean: int = 0

    def __str__(self) -> str:
        if self.rounds > 1:
            rounds = f", {self.rounds} rounds"
        else:
            rounds = ""
        return f"{self.order}, {self.limit} devices{rounds}{LEANS[self.lean]}"


def device_limits(num_devices: int) -> list[int]:
    """Return the numbers of devices to aim at: powers of two, and all. Ascending."""
    return sorted(
        {2**e for e in range(num_devices.bit_length()) if 2**e <= num_devices}
        | {num_devices}
    )


def possible_aims(
    problem: Problem, orders: tuple[str, ...], *, tight: bool
) -> list[Aim]:
    """Return all aims of a problem under these orders, of all devices and of fewer by turns.

    Of fewer devices one comes first, then one aim of each number before a second of any: else all
    that are decoded on 32 devices would be of 32. Where there are micro-batches chunks come before
    other walks of as many devices. Rounds need chunks, and rounds above two micro-batches. Where
    memory is ``tight`` and there are none, chunks also come with the fewest transfers that fit.
    """
    limits = device_limits(problem.num_devices)[1:]
    several = problem.microbatches > 1
    costly = several or problem.num_devices > 2 * MOST_EVERY

    # 1. Walks without chunks: few devices afford one more.
    free = [
        o for o in orders if o != COORDINATE and not (costly and o == "downward-rank")
    ]
    result = [Aim(order, limit) for limit in limits for order in free]
    if limits:
        leaning = [order for order in free if order in LEAN_ORDERS]
        for order in leaning[: 1 if several else 2]:
            for lean in range(1, len(LEANS)):
                result.append(Aim(order, limits[-1], lean=lean))

    # 2. Chunks along the coordinate.
    if COORDINATE in orders:
        largest = min(problem.num_devices, MOST_EVERY)
        every = sorted({*range(2, largest + 1), *limits})
        rounds = ROUNDS if several else ROUNDS[:1]
        for limit in every:
            for num_rounds in rounds if limit in limits else rounds[:2]:
                result.append(Aim(COORDINATE, limit, num_rounds))
        if tight and not several:
            result += [Aim(COORDINATE, limit, lean=ANY_LOAD) for limit in limits]

    # 3. Aims of all devices and of fewer by turns; of fewer, one of each number before a second.
    result.sort(key=lambda aim: (aim.order == COORDINATE) != several)
    of_all = [aim for aim in result if aim.limit == problem.num_devices]
    all_limits = [aim.limit for aim in result]
    turn = {aim: all_limits[:i].count(aim.limit) for i, aim in enumerate(result)}
    fewer = [aim for aim in result if aim.limit < problem.num_devices]

    def precedence(aim: Aim) -> tuple[int, bool, int]:
        return turn[aim], aim.limit not in limits, -aim.limit

    fewer.sort(key=precedence)
    turns = zip_longest(of_all, [Aim(orders[0], 1), *fewer])
    return [aim for pair in turns for aim in pair if aim is not None]


MOST_CUTS = 300
TOO_MUCH = 100.0  # cost, in all the work, of twice the bytes that fit
# The share of the lesser of work and transfers that the greater does not hide.
OVERLAP = 0.1


def chunk_plan(
    graph: WalkGraph,
    limit: int,
    rounds: int,
    margin: float = 0.0,
    any_load: bool = False,
) -> IntArray:
    """Return the device of each unit in the plan for ``limit`` devices and ``rounds`` rounds. [U]

    ``margin`` times the bytes at the peak have to fit. With ``any_load`` the plan has the least
    sum of the chunks' costs, not the least greatest: for steps that are no pipeline.
    """
    devices = np.sort(device_ranking(graph.space)[:limit])
    order = graph.unit_order
    times = graph.forward.unit_time[:, devices]
    mean_work = graph.forward.unit_work[:, None]
    work = np.where(np.isfinite(times), times, mean_work)[order]
    nothing = np.zeros((1, len(devices)))
    work_before = np.concatenate((nothing, np.cumsum(work, axis=0)))
    crossing = crossing_seconds(graph)
    cuts = _thinned(work_before[:, 0], crossing)
    walk = graph.forward
    need = np.concatenate(
        ([0.0], np.cumsum((walk.unit_state + margin * walk.unit_peak)[order]))
    )
    room = walk.memory[devices] / rounds
    chunks = len(devices) * rounds
    cut_after = bottleneck_cuts(
        work_before[cuts], crossing[cuts], need[cuts], room, chunks, any_load
    )
    position = np.arange(len(order))
    chunk = np.searchsorted(cuts[cut_after], position, side="right")
    plan = np.empty(len(order), np.int32)
    plan[order] = devices[chunk % len(devices)]
    return plan


def crossing_seconds(graph: WalkGraph) -> FloatArray:
    """Return the seconds of transfers between the first i units in order and the rest. [U + 1]

    A tensor crosses once each way however many consumers it has there; all micro-batches count.
    """
    g = graph.graph
    count = len(graph.unit_order)
    rank = np.empty(count, np.int64)
    rank[graph.unit_order] = np.arange(count)
    produced = rank[graph.unit[g.producer]]
    consumed = rank[graph.unit[g.consumer]]
    tensor = g.consumption_tensor
    first = produced.copy()
    last = produced.copy()
    np.minimum.at(first, tensor, consumed)
    np.maximum.at(last, tensor, consumed)
    seconds = mean_transfer_times(graph.problem, g.size) * graph.problem.microbatches
    steps = np.zeros(count + 2)
    np.add.at(steps, first + 1, seconds)
    np.add.at(steps, last + 1, -seconds)
    return np.cumsum(steps)[: count + 1]


def _thinned(done: FloatArray, crossing: FloatArray) -> IntArray:
    """Return the cuts to choose from, ascending, both ends among them."""
    count = len(done)
    if count <= MOST_CUTS:
        return np.arange(count, dtype=np.int32)
    share_done = done / max(done[-1], 1e-300)
    stretch = (share_done * MOST_CUTS).astype(int)
    stretch = np.minimum(stretch, MOST_CUTS - 1)
    by = np.lexsort((crossing, stretch))
    begins = np.flatnonzero(np.diff(stretch[by], prepend=-1))
    firsts = by[begins]
    cuts = np.concatenate(([0], firsts, [count - 1]))
    return np.unique(cuts).astype(np.int32)


@kernel
def bottleneck_cuts(
    work_before: FloatArray,
    crossing: FloatArray,
    need: FloatArray,
    room: FloatArray,
    chunks: int,
    summed: bool,
) -> IntArray:
    """Return which cuts end the chunks but the last, for the least greatest or summed cost. [chunks
    - 1]

    Args:
        work_before: work before each cut on each of k devices. [cuts, k]
        crossing: seconds of the transfers over each cut. [cuts]
        need: bytes before each cut. [cuts]
        room: bytes of a chunk on each of k devices. [k]
        chunks: how many; chunk c is on device c mod k.
        summed: whether costs add up.
    """
    cuts, num_devices = work_before.shape
    everything = greatest(work_before[-1]) + greatest(crossing)
    best = full_table(chunks + 1, cuts, np.inf)
    came = zero_int_table(chunks + 1, cuts)
    best[0, 0] = 0.0
    for c in range(1, chunks + 1):
        d = (c - 1) % num_devices
        for j in range(cuts):
            for i in range(j, -1, -1):
                work = work_before[j, d] - work_before[i, d]
                if work > best[c, j]:
                    break
                transfers = crossing[i] + crossing[j] if i < j else 0.0
                cost = (
                    work + transfers / 2.0
                    if summed
                    else max(work, transfers) + OVERLAP * min(work, transfers)
                )
                cost += (
                    TOO_MUCH
                    * everything
                    * max(0.0, (need[j] - need[i]) / room[d] - 1.0)
                )
                value = best[c - 1, i] + cost if summed else max(best[c - 1, i], cost)
                if value < best[c, j]:
                    best[c, j], came[c, j] = value, i
    result = empty_ints(chunks - 1)
    at = cuts - 1
    for c in range(chunks, 1, -1):
        at = came[c, at]
        result[c - 2] = at
    return result
