"""Aims: the settings that a problem is decoded with; and plans of chunks, which some aims have.

**Aims.** An aim is a traversal order, a number of devices, a number of rounds (runs of consecutive
work on a device) and a preference of the decoder. ``possible_aims`` lists those of a problem. The
first ones of the list are decoded.

**Chunk plans** (``chunk_plan``) cut the units for a pipeline of k devices and r rounds. Units in
the order of ``WalkGraph.unit_order`` are cut into k r chunks; chunk c is for device c mod k. The
cost of a chunk is the larger of its work there and the transfers over its two cuts, plus a little
of the smaller, plus a large penalty on bytes that do not fit. The plan minimises the largest cost
of a chunk by dynamic programming,

    V(c, j) = min over i <= j of max(V(c - 1, i), cost of i..j),

the bottleneck partition of PipeDream (Narayanan et al., 2019). Deviations: transfers use the
cluster's mean link. With many units, only the cheapest cut of each of ``MOST_CUTS`` stretches of
equal work is considered. If memory is tight and there are no micro-batches, costs are added
instead, which gives the fewest transfers that fit. The plan is a feature that the decoder sees; the
policy need not follow it. Complexity: O(edges + k r MOST_CUTS^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from gnnplace.arrays import TINY, FloatArray, IntArray
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

# Orders in which the decoder picks the next op itself, with the rule of ``ready_queue``.
RULES = {IN_TIME: ready_queue.IN_TIME, EARLY: ready_queue.EARLY}
DECODED = (
    "upward-rank",
    "downward-rank",
    "reverse-upward-rank",
    IN_TIME,
    EARLY,
    COORDINATE,
)
"""Orders that the learned placer decodes in."""
LEANS = ("", ", whatever the load", ", early starts")
"""Preferences of the decoder, in words: none, or one that changes what it compares devices by."""
ANY_LOAD = 1  # index in ``LEANS``
LEAN_ORDERS = ("upward-rank", IN_TIME)
ROUNDS = (1, 2, 3)
MOST_EVERY = 8  # chunks get an aim for every number of devices up to this one


@dataclass(frozen=True)
class Aim:
    """The aim of a decode.

    Attributes:
        order: The traversal order of the walk.
        limit: The number of devices to use.
        rounds: The number of runs of consecutive work on each device.
        lean: The decoder's preference, an index in ``LEANS``.
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


def list_device_limits(num_devices: int) -> list[int]:
    """Return the numbers of devices to aim at, ascending: powers of two, and all devices."""
    powers_of_two = {2**exponent for exponent in range(num_devices.bit_length())}
    return sorted(powers_of_two | {num_devices})


def possible_aims(
    problem: Problem, orders: tuple[str, ...], *, tight: bool
) -> list[Aim]:
    """Return all aims of a problem, in the order in which they are decoded.

    Aims for all devices alternate with aims for fewer. The first of the latter is for one device.
    Then each number of devices has one aim before any has a second one; otherwise all aims that are
    decoded on 32 devices would be for 32.

    With micro-batches, aims in chunks come before other aims for as many devices, and may have
    several rounds. Without, they come after the others; if memory is tight, there are more of them,
    with the fewest transfers that fit.

    Args:
        problem: The problem.
        orders: The traversal orders that the policy decodes in; ``COORDINATE`` gives chunks.
        tight: Whether some placement exceeds the memory.
    """
    limits = list_device_limits(problem.num_devices)[1:]
    several = problem.microbatches > 1
    is_costly = several or problem.num_devices > 2 * MOST_EVERY

    # 1. Walks without chunks. Only where a decode is cheap, there is one in downward rank too.
    walk_orders = [order for order in orders if order != COORDINATE]
    if is_costly:
        walk_orders = [order for order in walk_orders if order != "downward-rank"]
    result = [Aim(order, limit) for limit in limits for order in walk_orders]
    if limits:
        lean_orders = [order for order in walk_orders if order in LEAN_ORDERS]
        for order in lean_orders[: 1 if several else 2]:
            for lean in range(1, len(LEANS)):
                result.append(Aim(order, limits[-1], lean=lean))

    # 2. Chunks along the coordinate.
    if COORDINATE in orders:
        largest = min(problem.num_devices, MOST_EVERY)
        rounds = ROUNDS if several else ROUNDS[:1]
        for limit in sorted({*range(2, largest + 1), *limits}):
            # Numbers that only chunks have get fewer aims.
            limit_rounds = rounds if limit in limits else rounds[:2]
            for num_rounds in limit_rounds:
                result.append(Aim(COORDINATE, limit, num_rounds))
        if tight and not several:
            result += [Aim(COORDINATE, limit, lean=ANY_LOAD) for limit in limits]

    # 3. With micro-batches chunks come first, without they come last.
    result.sort(key=lambda aim: (aim.order == COORDINATE) != several)

    # 4. Alternate aims for all devices and for fewer; of the latter, the first aims of all numbers
    # come before the second ones.
    for_all = [aim for aim in result if aim.limit == problem.num_devices]
    for_fewer = [aim for aim in result if aim.limit < problem.num_devices]
    limits_in_order = [aim.limit for aim in result]
    turn = {aim: limits_in_order[:i].count(aim.limit) for i, aim in enumerate(result)}

    def precedence(aim: Aim) -> tuple[int, bool, int]:
        return turn[aim], aim.limit not in limits, -aim.limit

    for_fewer.sort(key=precedence)
    one_device = Aim(orders[0], 1)
    aims: list[Aim] = []
    for pair in zip_longest(for_all, [one_device, *for_fewer]):
        aims += [aim for aim in pair if aim is not None]
    return aims


MOST_CUTS = 300  # places that a plan may cut at
TOO_MUCH = (
    100.0  # penalty of a chunk of twice the bytes that fit, in multiples of all work
)
OVERLAP = (
    0.1  # share of the smaller of work and transfers that the larger does not hide
)


def chunk_plan(
    graph: WalkGraph,
    limit: int,
    rounds: int,
    margin: float = 0.0,
    any_load: bool = False,
) -> IntArray:
    """Plan chunks and return the device of each unit. [U]

    Args:
        graph: The problem's units and their order.
        limit: The number of devices.
        rounds: The number of chunks on each device.
        margin: Factor of the bytes of tensors at the peak; so many have to fit beside the state.
        any_load: Whether the sum of the chunks' costs is minimised, not the largest cost: for steps
            that are no pipeline.
    """
    devices = np.sort(device_ranking(graph.space)[:limit])
    order = graph.unit_order
    times = graph.forward.unit_time[:, devices]
    mean_work = graph.forward.unit_work[:, None]
    work = np.where(np.isfinite(times), times, mean_work)[order]
    first_row = np.zeros((1, len(devices)))
    work_before = np.concatenate((first_row, np.cumsum(work, axis=0)))
    walk = graph.forward
    unit_bytes = (walk.unit_state + margin * walk.unit_peak)[order]
    bytes_before = np.concatenate(([0.0], np.cumsum(unit_bytes)))

    # Choose the cuts, of which only some are considered.
    crossing = crossing_seconds(graph)
    cuts = _select_cuts(work_before[:, 0], crossing)
    cut_after = bottleneck_cuts(
        work_before[cuts],
        crossing[cuts],
        bytes_before[cuts],
        walk.memory[devices] / rounds,
        len(devices) * rounds,
        any_load,
    )
    position = np.arange(len(order))
    chunk = np.searchsorted(cuts[cut_after], position, side="right")
    plan = np.empty(len(order), np.int32)
    plan[order] = devices[chunk % len(devices)]
    return plan


def crossing_seconds(graph: WalkGraph) -> FloatArray:
    """Return the seconds of transfers between the first i units and the others, for all i. [U + 1]

    Units are in the order of ``graph.unit_order``. A tensor crosses a place once, however many
    consumers it has behind it; the transfers of all micro-batches are added up.
    """
    ops = graph.graph
    num_units = len(graph.unit_order)
    rank = np.empty(num_units, np.int64)
    rank[graph.unit_order] = np.arange(num_units)
    produced = rank[graph.unit[ops.producer]]
    consumed = rank[graph.unit[ops.consumer]]
    tensor = ops.consumption_tensor
    first = produced.copy()
    last = produced.copy()
    np.minimum.at(first, tensor, consumed)
    np.maximum.at(last, tensor, consumed)

    # A tensor crosses every place behind its first end and before its last one.
    seconds = mean_transfer_times(graph.problem, ops.size) * graph.problem.microbatches
    change = np.zeros(num_units + 2)
    np.add.at(change, first + 1, seconds)
    np.add.at(change, last + 1, -seconds)
    return np.cumsum(change)[: num_units + 1]


def _select_cuts(work_before: FloatArray, crossing: FloatArray) -> IntArray:
    """Return the places that may be cut, ascending, with both ends.

    These are all places, or if there are many, the one with the fewest seconds of transfers in each
    of ``MOST_CUTS`` stretches of equal work.
    """
    num_places = len(work_before)
    if num_places <= MOST_CUTS:
        return np.arange(num_places, dtype=np.int32)
    share = work_before / max(work_before[-1], TINY)
    stretch = (share * MOST_CUTS).astype(int)
    stretch = np.minimum(stretch, MOST_CUTS - 1)
    by_stretch = np.lexsort((crossing, stretch))
    begins = np.flatnonzero(np.diff(stretch[by_stretch], prepend=-1))
    cheapest = by_stretch[begins]
    cuts = np.concatenate(([0], cheapest, [num_places - 1]))
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
    """Return the cut at the end of each chunk but the last, an index into cuts. [chunks - 1]

    The largest cost of a chunk is as small as possible, or the sum of their costs.

    Args:
        work_before: Seconds of the work before each cut on each of k devices. [cuts, k]
        crossing: Seconds of the transfers over each cut. [cuts]
        need: Bytes before each cut. [cuts]
        room: Bytes that a chunk may have on each of k devices. [k]
        chunks: The number of chunks; chunk c is on device c mod k.
        summed: Whether the sum of costs is minimised.
    """
    # best[c, j]: the value of c chunks that end at cut j. came[c, j]: where the last one begins.
    cuts, num_devices = work_before.shape
    everything = greatest(work_before[-1]) + greatest(crossing)
    best = full_table(chunks + 1, cuts, np.inf)
    came = zero_int_table(chunks + 1, cuts)
    best[0, 0] = 0.0
    for c in range(1, chunks + 1):
        d = (c - 1) % num_devices
        for j in range(cuts):
            # A chunk that begins earlier has more work: once that is too much, none is better.
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
                    best[c, j] = value
                    came[c, j] = i
    # Walk back from the last cut.
    result = empty_ints(chunks - 1)
    at = cuts - 1
    for c in range(chunks, 1, -1):
        at = came[c, at]
        result[c - 2] = at
    return result
