"""The annealer: moves of units and of the order from a good placement, in cycles that cool down.

Formulation: simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983). The state is a device for
every unit and one order of all ops; moves and energy are those of ``moves``. The acceptance
threshold is drawn before the move is simulated (``moves.draw_threshold``), so that the simulation
stops as soon as the move must be rejected. A shift that passes no op on its own device changes
nothing and is not simulated. Each cycle starts from the best state so far and is longer than the
one before. None of this depends on the budget, so that a larger budget is never worse. A cycle's
``Habit`` says how it treats the order:

* **renewed**: after a number of moves of units, list scheduling makes a new order with the present
  order as its priority. Without renewal a moved unit keeps a place in the order that suited its
  former device, and pipelines of micro-batches never form (5 % of the step time on captured
  graphs).
* **loose**: a move is simulated in the present order. If the result is not far above the state's
  step time, list scheduling by the best state's distances to the end
  (``list_scheduling.distances``) makes an order for the new devices, and the better order counts.
  On problems where this rarely helps, most moves skip it. A new best state is justified at once.

``Annealer`` is the cycle of ``annealing``: 30 % of the moves are shifts, and 30 % of the others
renew the order. The temperature falls geometrically to a thirtieth. It starts at 0.1 % of the
start's energy times the square root of the cycle's moves per op, within 0.03 % and 0.3 %. A hotter
start on a large graph, which gets few moves, destroys a good state that is never found again. Each
cycle is twice as long as the one before; a cycle that improved the best state ends with a renewal
by all known priorities. With budget 0 there is one cycle of 2,000 moves, fewer above 2,000 ops. The
learned placer has its own cycles (``policy.search``). Moves are drawn at random: a network that
valued them was no better (docs/learned.md). Complexity: O(moves) simulations.

The best state may exceed memory by some bytes, for which the penalty is small. The best state that
fits is kept as well, so that an answer is never worse than a start that fits. A penalty that keeps
searches out of states which do not fit is simpler, but finds less: on 26 problems of tight memory,
steps of ``learned`` were 1.007 times as long, at most 1.08 times (one processor second each).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray, LongArray
from gnnplace.graph import copy_to, empty_ints, inner, kernel
from gnnplace.placers.search.moves import (
    Neighbourhood,
    compute_energy,
    draw_threshold,
    energy,
    find_window,
    move_units,
    neighbourhood,
    passes_none,
    propose,
    renew_order,
    seed_kernel,
    shift,
    undo_move,
)
from gnnplace.placers.search.repair import repair
from gnnplace.placers.search.space import (
    NO_BUDGET,
    Found,
    SearchSpace,
    choose_better,
    is_expired,
    read_clock,
)
from gnnplace.simulation import (
    Compiled,
    compute_distances,
    count_steps,
    list_schedule,
    list_schedule_in_kernel,
)

HOT = 0.001
HOTTEST = 0.003
COLDEST = 0.0003
FALL = 30.0
MOVES_WITHOUT_BUDGET = 2_000
OPS_WITHOUT_BUDGET = 4_000_000
FIRST_OPS = 1_000_000  # moves of the first cycle times ops
CALL_OPS = 50_000  # the same between two looks at the clock: some 5 ms
WORTH = 50  # orders made for a move's devices that one better one must pay for


class Habit(NamedTuple):
    """The settings of a cycle's moves.

    Attributes:
        shifts: share of moves that shift an op in the order.
        loose: a move whose step time in the old order is at most so far above, relatively, gets an
            order of its own; 0: no move does.
        renewed: share of the other moves whose order list scheduling makes of the old one.
        polished: whether each best state is justified.
    """

    shifts: float
    loose: float = 0.0
    renewed: float = 0.0
    polished: bool = True


RENEWING = Habit(shifts=0.3, renewed=0.3, polished=False)


class SearchState(NamedTuple):
    """The state of the search. All arrays change in place.

    Attributes:
        unit_device: device of each unit. [U]
        device: device of each op. [n]
        order: order of all ops. [n]
        priority: Priority of each op, by which orders are made for a move's devices. [n]
        best_device: device of each op in the best state. [n]
        best_order: its order. [n]
        score: predicted seconds with penalty, of the state and of the best state. [2]
        orders: how many were made for a move's devices, and how many of them were better. [2]
    """

    unit_device: IntArray
    device: IntArray
    order: IntArray
    priority: FloatArray
    best_device: IntArray
    best_order: IntArray
    score: FloatArray
    orders: LongArray


@kernel
def anneal_until_better(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    habit: Habit,
    state: SearchState,
    temperature: float,
    moves: int,
) -> int:
    """Make at most ``moves`` moves at one temperature, in seconds; change ``state`` in place.

    A polished search stops at a move that is better than the best state, for ``anneal_moves``.

    Returns:
        How many moves were tried.
    """
    n = len(state.order)
    num_units = len(state.unit_device)
    device = state.device
    touched = empty_ints(num_units + 16)
    former = empty_ints(num_units + 16)
    position = empty_ints(n)
    take_order(state, state.order, position)
    for move in range(moves):
        threshold = draw_threshold(state.score[0], temperature)
        # 1. An op is shifted in the order; that changes nothing if it passes none of its device.
        if np.random.random() < habit.shifts:
            op = np.random.randint(n)
            low, high = find_window(compiled, neighbourhood, state.order, position, op)
            if high <= low:
                continue
            origin = position[op]
            goal = np.random.randint(low, high + 1)
            same = passes_none(device, state.order, origin, goal)
            shift(state.order, position, origin, goal)
            if same:
                continue
            tried = energy(compiled, neighbourhood, device, state.order, threshold)
            if tried > threshold:
                shift(state.order, position, goal, origin)
                continue
        # 2. Units go to another device, sometimes with an order made anew for where they are.
        else:
            count, target = propose(neighbourhood, state.unit_device, touched)
            units = touched[:count]
            if (
                move_units(
                    neighbourhood, state.unit_device, device, units, target, former
                )
                == 0
            ):
                continue
            renewed = habit.renewed > 0.0 and np.random.random() < habit.renewed
            if renewed:
                order = renew_order(compiled, device, state.order)
            else:
                order = state.order
            limit = max(threshold, state.score[0] * (1.0 + habit.loose))
            tried = energy(compiled, neighbourhood, device, order, limit)
            if tried <= limit and is_worth_an_order(habit, state):
                tried = score_in_own_order(
                    compiled, neighbourhood, state, position, threshold, tried
                )
            if tried > threshold:
                undo_move(neighbourhood, state.unit_device, device, units, former)
                continue
            if renewed:
                take_order(state, order, position)
        # 3. What is accepted is the state, and what is better than all before the best one.
        state.score[0] = tried
        if tried < state.score[1]:
            if habit.polished:
                return move + 1
            keep_best(state)
    return moves


@inner(_nrt=False)
def take_order(state: SearchState, order: IntArray, position: IntArray) -> None:
    """Make ``order`` the state's, and ``position`` where each op is in it. [n], [n]"""
    copy_to(state.order, order)
    for k in range(len(order)):
        position[order[k]] = k


@inner(_nrt=False)
def keep_best(state: SearchState) -> None:
    """Make the state the best one."""
    state.score[1] = state.score[0]
    copy_to(state.best_device, state.device)
    copy_to(state.best_order, state.order)


@inner(_nrt=False)
def is_worth_an_order(habit: Habit, state: SearchState) -> bool:
    """Return whether a move is to get an order of its own: always while that pays, else now and
    then.
    """
    if habit.loose <= 0.0:
        return False
    pays = WORTH * (state.orders[1] + 1) > state.orders[0]
    return pays or np.random.random() < 1.0 / WORTH


@inner()
def score_in_own_order(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    state: SearchState,
    position: IntArray,
    threshold: float,
    tried: float,
) -> float:
    """Return the score of the state's devices in an order of their own if that is kept, else
    ``tried``.
    """
    order = list_schedule_in_kernel(compiled, state.device, state.priority)
    reordered = energy(
        compiled, neighbourhood, state.device, order, min(threshold, tried)
    )
    state.orders[0] += 1
    if reordered >= tried or reordered > threshold:
        return tried
    state.orders[1] += 1
    take_order(state, order, position)
    return reordered


def anneal_moves(
    space: SearchSpace,
    neighbourhood: Neighbourhood,
    habit: Habit,
    state: SearchState,
    temperature: float,
    moves: int,
) -> None:
    """Make ``moves`` moves at one temperature, in seconds by which one may well be worse.

    Changes ``state`` in place. A polished habit's best state is justified, if that makes it better.
    """
    compiled = space.compiled
    remaining = moves
    while remaining > 0:
        remaining -= anneal_until_better(
            compiled, neighbourhood, habit, state, temperature, remaining
        )
        if state.score[0] < state.score[1]:
            state.priority[:] = compute_distances(
                compiled, space.reversed, state.device, state.order
            )
            order = list_schedule(compiled, state.device, state.priority)
            tried = compute_energy(
                compiled=compiled,
                neighbourhood=neighbourhood,
                device=state.device,
                order=order,
                cutoff=state.score[0],
            )
            if tried < state.score[0]:
                state.order[:] = order
                state.score[0] = tried
            keep_best(state)


def start_state(space: SearchSpace, device: IntArray, order: IntArray) -> SearchState:
    """Return a state and best state from a placement, without priority. [n], [n]"""
    score = space.score(device, order)
    return SearchState(
        unit_device=space.find_unit_devices(device),
        device=device.copy(),
        order=order.copy(),
        priority=np.zeros(len(order)),
        best_device=device.copy(),
        best_order=order.copy(),
        score=np.array([score, score]),
        orders=np.zeros(2, np.int64),
    )


def back_to_best(
    space: SearchSpace, state: SearchState, *, polished: bool = True
) -> None:
    """Make the best state the state; the priority is that of its justification."""
    state.device[:], state.order[:] = state.best_device, state.best_order
    state.score[0] = state.score[1]
    state.unit_device[:] = space.find_unit_devices(state.device)
    if polished:
        state.priority[:] = compute_distances(
            space.compiled, space.reversed, state.device, state.order
        )


def hottest(moves_per_op: float) -> float:
    """Return the first temperature, as a share of the start's energy, for so many moves an op."""
    return float(np.clip(HOT * np.sqrt(moves_per_op), COLDEST, HOTTEST))


class Annealer:
    """Cycles of annealing of one problem, each from the best state so far.

    Attributes:
        state: where the search is, and the best so far.
        moves: the number of moves that were tried so far.
        fitting: the best placement so far that fits; the start where none did.
        seen: the score of the last best state that was asked whether it fits.

    Args:
        space: the search space of the problem that is annealed.
        start: a placement that runs.
        rng: Random numbers for the seed of each cycle.
    """

    call_ops = CALL_OPS

    def __init__(
        self, space: SearchSpace, start: Found, rng: np.random.Generator
    ) -> None:
        self.space = space
        self.rng = rng
        self.neighbourhood = neighbourhood(space)
        self.state = start_state(space, start.device, start.order)
        self.moves = 0
        self.seen = np.inf
        self.fitting = start
        self._keep_fitting()
        n = len(start.order)
        self.next_cycle = max(1, FIRST_OPS // n)
        self.per_call = int(np.clip(self.call_ops // n, 1, 1_000))

    @property
    def score(self) -> float:
        """Return the predicted seconds of the best state, with penalty."""
        return float(self.state.score[1])

    @property
    def ops(self) -> int:
        """Return the cost of the search so far: moves times ops."""
        return self.moves * self.space.problem.num_ops

    def found(self, note: str = "") -> Found:
        """Return the best state so far; the next cycle changes its arrays."""
        return Found(self.state.best_device, self.state.best_order, note)

    def answer(self, note: str) -> Found:
        """Return the best state, repaired, or the best that fitted where that is better."""
        best = self.found(note)
        space = self.space
        if space.fits(best.device, best.order):
            return best
        repaired = Found(*repair(space, best.device, best.order), note)
        fitting = self.fitting
        if space.fits(fitting.device, fitting.order) and not space.fits(
            repaired.device, repaired.order
        ):
            return replace(fitting, note=note)
        return replace(choose_better(space, fitting, repaired), note=note)

    def offer(self, found: Found, score: float) -> None:
        """Take a placement that is better than the best state."""
        if score < self.score:
            state = self.state
            state.best_device[:], state.best_order[:] = found.device, found.order
            state.score[1] = score
            self._keep_fitting()

    def cycle(self, deadline: float) -> None:
        """Run the next cycle, twice as long as the one before it."""
        self.run(self.next_cycle, deadline)
        self.next_cycle *= 2

    def run(self, moves: int, deadline: float) -> None:
        """Run a cycle of so many moves, cut off at the deadline."""
        state = self.state
        score_before = self.score
        back_to_best(self.space, state, polished=False)
        seed_kernel(int(self.rng.integers(2**31)))
        hot = score_before * hottest(moves / len(state.order))
        self.cool(RENEWING, moves, lambda share: hot * FALL**-share, deadline)
        if self.score < score_before:
            score, order = self.space.sequence(state.best_device, cutoff=self.score)
            if score < self.score:
                state.score[1] = score
                state.best_order[:] = order

    def cool(
        self,
        habit: Habit,
        moves: int,
        temperature: Callable[[float], float],
        deadline: float,
    ) -> None:
        """Make so many moves while the temperature falls, cut off at the deadline.

        Args:
            habit: how the cycle moves.
            moves: how many to try.
            temperature: seconds by which a move may well be worse, by the share that is done.
            deadline: when to be back.
        """
        for num_done in range(0, moves, self.per_call):
            if is_expired(deadline):
                break
            count = min(self.per_call, moves - num_done)
            heat = temperature(num_done / moves)
            anneal_moves(
                space=self.space,
                neighbourhood=self.neighbourhood,
                habit=habit,
                state=self.state,
                temperature=heat,
                moves=count,
            )
            self.moves += count
            count_steps(count)
            self._keep_fitting()

    def _keep_fitting(self) -> None:
        """Keep the best state apart if it is new and fits."""
        state = self.state
        space = self.space
        if space.memory_matters and self.score < self.seen:
            self.seen = self.score
            if space.fits(state.best_device, state.best_order):
                self.fitting = Found(state.best_device.copy(), state.best_order.copy())


def anneal(
    space: SearchSpace, start: Found, rng: np.random.Generator, deadline: float
) -> Found:
    """Anneal from ``start`` until the deadline; one cycle of some moves without one."""
    if not np.isfinite(space.score(start.device, start.order)):
        return start
    annealer = Annealer(space, start, rng)
    if deadline <= NO_BUDGET:
        n = len(start.order)
        annealer.run(
            max(1, min(MOVES_WITHOUT_BUDGET, OPS_WITHOUT_BUDGET // n)), deadline
        )
    while read_clock() < deadline:
        annealer.cycle(deadline)
    return annealer.answer(f"{annealer.moves} moves")
