"""``annealing``: simulated annealing on units and order (Kirkpatrick, Gelatt and Vecchi, 1983).

Formulation: the state is a device for every unit and one order of all ops; the energy is the
simulated step time, plus a penalty on bytes above the memory limits. Moves:

* one unit to the device of a neighbour, or to any allowed device;
* a patch: a unit and its neighbours in the graph to one device;
* a range of units in coordinate order to the device before or after it (moves cuts and chunks);
* an op to another place in the order between its inputs and its consumers.

After three moves of units in ten list scheduling renews the order, the present one being the
priority: without it what moves keeps a place in the order that was made for where it came from, and
pipelines of micro-batches never form (5 % of the step time on captured graphs). A shift that passes
no op of its own device changes nothing and is not simulated.

The temperature falls geometrically to a thirtieth over the budget. It starts at 0.1 % of the
start's energy times the root of how many moves there will be an op, at 0.03 % to 0.3 %: hotter, and
the few moves that a large graph gets destroy a good start and never come back. The acceptance
threshold is drawn first, so that a simulation stops as soon as it must be rejected. Starts from the
best of all constructions, which may use a third of the budget; ends with one renewal by all known
priorities.
With budget 0: 2,000 moves, fewer above 2,000 ops. Complexity: O(moves) simulations.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.jit import inner, kernel
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.clock import NO_BUDGET, share_of
from gnnplace.placers.constructions import best_construction
from gnnplace.placers.search_space import SearchSpace
from gnnplace.simulation.arrays import copy_to
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.kernels import step_time_kernel
from gnnplace.simulation.list_scheduling import list_schedule
from gnnplace.simulation.memory import excess_kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
HOT, HOTTEST, COLDEST, FALL = 0.001, 0.003, 0.0003, 30.0
RENEWED = 0.3  # of the moves of units
CONSTRUCTION_SHARE = 1 / 3
MOVES_WITHOUT_BUDGET, OPS_WITHOUT_BUDGET = 2_000, 4_000_000
ROUND_SECONDS = 0.02
WINDOW = 60


class Neighbourhood(NamedTuple):
    """What moves look up: ops and neighbours of units, units by coordinate, allowed devices."""

    op_offset: IntArray
    ops: IntArray
    edge_offset: IntArray
    neighbour: IntArray
    unit_order: IntArray
    unit_rank: IntArray
    allowed: NDArray[np.bool_]
    producer: IntArray
    penalty: float
    memory_matters: bool


@kernel
def seed_kernel(seed: int) -> None:
    """Seeds the kernels' random numbers."""
    np.random.seed(seed)


@inner(inline="always")
def energy(
    c: Compiled, h: Neighbourhood, device: IntArray, order: IntArray, cutoff: float
) -> float:
    """Simulated seconds plus the penalty; inf above ``cutoff``."""
    if not h.memory_matters:
        return step_time_kernel(c, device, order, cutoff)
    seconds, excess = excess_kernel(c, device, order, cutoff)
    memory = 0.0
    for d in range(len(c.memory)):
        memory += c.memory[d]
    return seconds + h.penalty * excess / max(1.0, memory)


def energy_of(
    c: Compiled, h: Neighbourhood, device: IntArray, order: IntArray, cutoff: float
) -> float:
    """``energy`` for callers that are no kernels."""
    if not h.memory_matters:
        return float(step_time_kernel(c, device, order, cutoff))
    seconds, excess = excess_kernel(c, device, order, cutoff)
    return float(seconds + h.penalty * excess / max(1.0, float(np.cumsum(c.memory)[-1])))


@inner()
def window_of(
    c: Compiled, h: Neighbourhood, order: IntArray, position: IntArray, op: int
) -> tuple[int, int]:
    """First and last position that ``op`` may take between its inputs and its consumers."""
    here = position[op]
    low, high = max(0, here - WINDOW), min(len(order) - 1, here + WINDOW)
    for j in range(c.input_offset[op], c.input_offset[op + 1]):
        low = max(low, position[h.producer[c.input_tensor[j]]] + 1)
    for j in range(c.op_tensor_offset[op], c.op_tensor_offset[op + 1]):
        tensor = c.op_tensor[j]
        for k in range(c.consumer_offset[tensor], c.consumer_offset[tensor + 1]):
            high = min(high, position[c.consumer[k]] - 1)
    return low, high


@inner()
def shift(order: IntArray, position: IntArray, origin: int, goal: int) -> None:
    """Moves the op at position ``origin`` to ``goal``, the ones between by one."""
    op = order[origin]
    step = 1 if goal > origin else -1
    for k in range(origin, goal, step):
        order[k] = order[k + step]
        position[order[k]] = k
    order[goal] = op
    position[op] = goal


@inner()
def passes_none(device: IntArray, order: IntArray, origin: int, goal: int) -> bool:
    """Whether a shift leaves every device's own sequence as it is."""
    d, step = device[order[origin]], 1 if goal > origin else -1
    k = origin + step
    while k != goal + step and device[order[k]] != d:
        k += step
    return k == goal + step


@inner(inline="always")
def renewed_order(c: Compiled, device: IntArray, order: IntArray) -> IntArray:
    """The order that list scheduling makes where ``order`` says who goes first. [n]"""
    priority = np.empty(len(order))
    for k in range(len(order)):
        priority[order[k]] = -k
    return list_schedule(c, device, priority)


@inner()
def propose(h: Neighbourhood, unit_device: IntArray, touched: IntArray) -> tuple[int, int]:
    """Units of a random move and the device they go to: how many are ``touched``, the target."""
    num_units, num_devices = h.allowed.shape
    unit = np.random.randint(num_units)
    kind = np.random.random()
    target = np.random.randint(num_devices)
    low, high = h.edge_offset[unit], h.edge_offset[unit + 1]
    touched[0] = unit
    if kind < 0.5:
        if kind < 0.35 and high > low:
            target = unit_device[h.neighbour[np.random.randint(low, high)]]
        return 1, target
    if kind < 0.7:
        count = 1
        for k in range(low, min(high, low + 12)):
            touched[count] = h.neighbour[k]
            count += 1
        return count, target
    first = h.unit_rank[unit]
    longest = max(1, int(num_units * 2.0 ** (-1.0 - 6.0 * np.random.random())))
    last = min(num_units, first + longest)
    if kind < 0.9:
        before = np.random.random() < 0.5
        edge = max(0, first - 1) if before else min(num_units - 1, last)
        target = unit_device[h.unit_order[edge]]
    for k in range(first, last):
        touched[k - first] = h.unit_order[k]
    return last - first, target


@inner()
def move_units(
    h: Neighbourhood,
    unit_device: IntArray,
    device: IntArray,
    units: IntArray,
    target: int,
    former: IntArray,
) -> int:
    """Moves ``units`` to ``target`` where they may be there; how many moved.

    ``former`` receives the device that each of them had, for ``undo_move``.
    """
    changed = 0
    for i in range(len(units)):
        unit = units[i]
        former[i] = unit_device[unit]
        if unit_device[unit] != target and h.allowed[unit, target]:
            changed += 1
            unit_device[unit] = target
            for k in range(h.op_offset[unit], h.op_offset[unit + 1]):
                device[h.ops[k]] = target
    return changed


@inner()
def undo_move(
    h: Neighbourhood,
    unit_device: IntArray,
    device: IntArray,
    units: IntArray,
    former: IntArray,
) -> None:
    """Puts ``units`` back where ``move_units`` found them, the last one first."""
    for i in range(len(units) - 1, -1, -1):
        unit = units[i]
        unit_device[unit] = former[i]
        for k in range(h.op_offset[unit], h.op_offset[unit + 1]):
            device[h.ops[k]] = former[i]


@kernel
def anneal_kernel(
    c: Compiled,
    h: Neighbourhood,
    unit_device: IntArray,
    device: IntArray,
    order: IntArray,
    now: float,
    temperature: float,
    moves: int,
    best_device: IntArray,
    best_order: IntArray,
    best: float,
) -> tuple[float, float]:
    """``moves`` steps at one temperature; changes the state and the best state in place.

    Returns:
        Energy of the state and of the best state.
    """
    n, num_units = len(order), len(unit_device)
    touched = np.empty(num_units + 16, np.int32)
    former = np.empty(num_units + 16, np.int32)
    position = np.empty(n, np.int32)
    for k in range(n):
        position[order[k]] = k
    for _ in range(moves):
        threshold = now - temperature * np.log(1.0 - np.random.random())
        if np.random.random() < 0.3:
            op = np.random.randint(n)
            low, high = window_of(c, h, order, position, op)
            if high <= low:
                continue
            origin, goal = position[op], np.random.randint(low, high + 1)
            same = passes_none(device, order, origin, goal)
            shift(order, position, origin, goal)
            if same:
                continue
            tried = energy(c, h, device, order, threshold)
            if tried <= threshold:
                now = tried
            else:
                shift(order, position, goal, origin)
        else:
            count, target = propose(h, unit_device, touched)
            changed = move_units(h, unit_device, device, touched[:count], target, former)
            if changed == 0:
                continue
            renewed = np.random.random() < RENEWED
            changed_order = renewed_order(c, device, order) if renewed else order
            tried = energy(c, h, device, changed_order, threshold)
            if tried > threshold:
                undo_move(h, unit_device, device, touched[:count], former)
                continue
            now = tried
            if renewed:
                copy_to(order, changed_order)
                for k in range(n):
                    position[order[k]] = k
        if now < best:
            best = now
            copy_to(best_device, device)
            copy_to(best_order, order)
    return now, best


def neighbourhood(space: SearchSpace) -> Neighbourhood:
    """The arrays that moves look up."""
    edge_offset, neighbour = space.unit_edges
    op_offset, ops = space.unit_ops
    rank = np.empty_like(space.unit_order)
    rank[space.unit_order] = np.arange(len(rank), dtype=np.int32)
    return Neighbourhood(
        op_offset,
        ops,
        edge_offset,
        neighbour,
        space.unit_order,
        rank,
        space.problem.unit_allowed,
        space.problem.graph.producer.copy(),
        space.penalty,
        space.memory_matters,
    )


class Annealing(Placer):
    """Simulated annealing with a time budget: the rival to fear."""

    name = "annealing"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        start = best_construction(space, rng, share_of(deadline, CONSTRUCTION_SHARE))
        found = anneal(space, start, rng, deadline)
        return Found(found.device, found.order, f"{start.note}, then {found.note}")


def hottest(moves_per_op: float) -> float:
    """The first temperature, as a share of the start's energy, for so many moves an op."""
    return float(np.clip(HOT * np.sqrt(moves_per_op), COLDEST, HOTTEST))


def anneal(space: SearchSpace, start: Found, rng: np.random.Generator, deadline: float) -> Found:
    """Anneals from ``start`` until the deadline; a fixed number of moves if it has passed."""
    if not np.isfinite(space.score(start.device, start.order)):
        return start
    c, h = space.compiled, neighbourhood(space)
    device, order = start.device.copy(), start.order.copy()
    unit_device = device[h.ops[h.op_offset[:-1]]].copy()
    now = first = space.score(device, order)
    best_device, best_order, best = device.copy(), order.copy(), now
    seed_kernel(int(rng.integers(2**31)))
    begin = time.perf_counter()
    timed, total, per_call = deadline > NO_BUDGET, 0, max(1, min(50, 20_000 // len(order)))
    most = max(per_call, min(MOVES_WITHOUT_BUDGET, OPS_WITHOUT_BUDGET // len(order)))
    round_seconds = float(np.clip((deadline - begin) / 50, 0.001, ROUND_SECONDS))
    while (time.perf_counter() < deadline) if timed else total < most:
        called = time.perf_counter()
        share = (called - begin) / (deadline - begin) if timed else total / most
        expected = total / max(share, 1e-3) if timed else most
        temperature = first * hottest(expected / len(order)) * FALL**-share
        now, best = anneal_kernel(
            c,
            h,
            unit_device,
            device,
            order,
            now,
            temperature,
            per_call,
            best_device,
            best_order,
            best,
        )
        total += per_call
        if timed:
            took = max(1e-6, time.perf_counter() - called)
            per_call = int(np.clip(per_call * round_seconds / took, 1, 20_000))
    score, renewed = space.sequence(best_device)
    if score < best:
        best_order = renewed
    return Found(best_device, best_order, f"{total} moves")
