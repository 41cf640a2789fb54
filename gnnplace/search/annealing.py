"""Simulated annealing on units and order (Kirkpatrick, Gelatt and Vecchi, 1983).

Formulation: states, moves and energy as ``moves`` has them. After three moves of units in ten list
scheduling renews the order, the present one being the priority: without it what moves keeps a place
in the order that was made for where it came from, and pipelines of micro-batches never form (5 % of
the step time on captured graphs). A shift that passes no op of its own device changes nothing and
is not simulated.

The temperature falls geometrically to a thirtieth over the budget. It starts at 0.1 % of the
start's energy times the root of how many moves there will be an op, at 0.03 % to 0.3 %: hotter, and
the few moves that a large graph gets destroy a good start and never come back. The acceptance
threshold is drawn first, so that a simulation stops as soon as it must be rejected. It ends with
one renewal by all known priorities.
With budget 0: 2,000 moves, fewer above 2,000 ops. Complexity: O(moves) simulations.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.allocation import empty_ints
from gnnplace.graph.jit import kernel
from gnnplace.search.clock import NO_BUDGET
from gnnplace.search.found import Found
from gnnplace.search.moves import (
    Neighbourhood,
    energy,
    move_units,
    neighbourhood,
    passes_none,
    propose,
    renewed_order,
    seed_kernel,
    shift,
    undo_move,
    window_of,
)
from gnnplace.search.space import SearchSpace
from gnnplace.simulation.arrays import copy_to
from gnnplace.simulation.compiled import Compiled

IntArray = NDArray[np.int32]
HOT, HOTTEST, COLDEST, FALL = 0.001, 0.003, 0.0003, 30.0
RENEWED = 0.3  # of the moves of units
MOVES_WITHOUT_BUDGET, OPS_WITHOUT_BUDGET = 2_000, 4_000_000
ROUND_SECONDS = 0.02


@kernel
def anneal_kernel(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
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
    touched = empty_ints(num_units + 16)
    former = empty_ints(num_units + 16)
    position = empty_ints(n)
    for k in range(n):
        position[order[k]] = k
    for _ in range(moves):
        threshold = now - temperature * np.log(1.0 - np.random.random())
        if np.random.random() < 0.3:
            op = np.random.randint(n)
            low, high = window_of(compiled, neighbourhood, order, position, op)
            if high <= low:
                continue
            origin, goal = position[op], np.random.randint(low, high + 1)
            same = passes_none(device, order, origin, goal)
            shift(order, position, origin, goal)
            if same:
                continue
            tried = energy(compiled, neighbourhood, device, order, threshold)
            if tried <= threshold:
                now = tried
            else:
                shift(order, position, goal, origin)
        else:
            count, target = propose(neighbourhood, unit_device, touched)
            changed = move_units(
                neighbourhood, unit_device, device, touched[:count], target, former
            )
            if changed == 0:
                continue
            renewed = np.random.random() < RENEWED
            changed_order = renewed_order(compiled, device, order) if renewed else order
            tried = energy(compiled, neighbourhood, device, changed_order, threshold)
            if tried > threshold:
                undo_move(neighbourhood, unit_device, device, touched[:count], former)
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
