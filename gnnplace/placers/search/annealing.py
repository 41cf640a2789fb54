"""Simulated annealing on units and order (Kirkpatrick, Gelatt and Vecchi, 1983).

Formulation: states, moves and energy as ``moves`` has them. After three moves of units in ten list
scheduling renews the order, the present one being the priority: without it what moves keeps a place
in the order that was made for where it came from, and pipelines of micro-batches never form (5 % of
the step time on captured graphs). A shift that passes no op of its own device changes nothing and
is not simulated.

Cycles start from the best state so far, each twice as long as the one before, so that the search
need not know when it will be cut off. In a cycle the temperature falls geometrically to a
thirtieth. It starts at 0.1 % of the start's energy times the root of how many moves the cycle has
an op, at 0.03 % to 0.3 %: hotter, and the few moves that a large graph gets destroy a good start
and never come back. The acceptance threshold is drawn first, so that a simulation stops as soon as
it must be rejected. A cycle that found something ends with a renewal by all known priorities.
With budget 0: one cycle of 2,000 moves, fewer above 2,000 ops. Complexity: O(moves) simulations.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.graph.jit import kernel
from gnnplace.graph.kernel_arrays import copy_to, empty_ints
from gnnplace.placers.search.clock import NO_BUDGET, expired, now
from gnnplace.placers.search.found import Found
from gnnplace.placers.search.moves import (
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
from gnnplace.placers.search.space import SearchSpace
from gnnplace.simulation.compiled import Compiled

HOT, HOTTEST, COLDEST, FALL = 0.001, 0.003, 0.0003, 30.0
RENEWED = 0.3  # of the moves of units
MOVES_WITHOUT_BUDGET, OPS_WITHOUT_BUDGET = 2_000, 4_000_000
FIRST_OPS = 1_000_000  # moves of the first cycle times ops
CALL_OPS = 50_000  # the same between two looks at the clock: some 5 ms


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
        # The most energy that is accepted is drawn first: what is above it need not be known.
        threshold = now - temperature * np.log(1.0 - np.random.random())
        # 1. An op is shifted in the order; that changes nothing if it passes none of its device.
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
        # 2. Units go to another device, sometimes with an order made anew for where they are.
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


class Annealer:
    """Cycles of annealing of one problem, each from the best state so far.

    Attributes:
        device: device of each op in the best state. [n]
        order: its order. [n]
        score: its energy in seconds.
        moves: the number of moves that were tried so far.

    Args:
        space: the search space of the problem that is annealed.
        start: a placement that runs.
        rng: for the seed of each cycle.
    """

    def __init__(self, space: SearchSpace, start: Found, rng: np.random.Generator) -> None:
        self.space, self.rng = space, rng
        self.neighbourhood = neighbourhood(space)
        self.device, self.order = start.device.copy(), start.order.copy()
        self.score = space.score(start.device, start.order)
        self.moves = 0
        n = len(start.order)
        self.next_cycle = max(1, FIRST_OPS // n)
        self.per_call = int(np.clip(CALL_OPS // n, 1, 1_000))

    def offer(self, found: Found, score: float) -> None:
        """Takes a placement that is better than the best state."""
        if score < self.score:
            self.device, self.order, self.score = found.device.copy(), found.order.copy(), score

    def cycle(self, deadline: float) -> None:
        """The next cycle, twice as long as the one before it."""
        self.run(self.next_cycle, deadline)
        self.next_cycle *= 2

    def run(self, moves: int, deadline: float) -> None:
        """A cycle of so many moves, cut off at the deadline."""
        h, first = self.neighbourhood, self.score
        device, order, now_energy = self.device.copy(), self.order.copy(), self.score
        unit_device = device[h.ops[h.op_offset[:-1]]].copy()
        hot, before = first * hottest(moves / len(order)), self.score
        seed_kernel(int(self.rng.integers(2**31)))
        for done in range(0, moves, self.per_call):
            if expired(deadline):
                break
            count = min(self.per_call, moves - done)
            now_energy, self.score = anneal_kernel(
                self.space.compiled,
                h,
                unit_device,
                device,
                order,
                now_energy,
                hot * FALL ** -(done / moves),
                count,
                self.device,
                self.order,
                self.score,
            )
            self.moves += count
        if self.score < before:
            self._renew()

    def _renew(self) -> None:
        """The best state with the best order by all known priorities, if that is better."""
        score, order = self.space.sequence(self.device, cutoff=self.score)
        if score < self.score:
            self.score, self.order = score, order


def anneal(space: SearchSpace, start: Found, rng: np.random.Generator, deadline: float) -> Found:
    """Anneals from ``start`` until the deadline; one cycle of some moves without one."""
    if not np.isfinite(space.score(start.device, start.order)):
        return start
    annealer = Annealer(space, start, rng)
    if deadline <= NO_BUDGET:
        n = len(start.order)
        annealer.run(max(1, min(MOVES_WITHOUT_BUDGET, OPS_WITHOUT_BUDGET // n)), deadline)
    while now() < deadline:
        annealer.cycle(deadline)
    return Found(annealer.device, annealer.order, f"{annealer.moves} moves")
