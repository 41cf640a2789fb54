"""Guided search: local search whose moves the policy proposes and whose orders follow the devices.

Formulation: the state is a device for every unit and one order of all ops, as in annealing. What
differs, and why:

* **Proposals.** Of a handful of random moves (annealing's: a unit, a patch, a range) the one that
  ``MoveNet`` values most is simulated; a share of the moves stays blind. Few random moves of a good
  placement are better (about one in 150 on captured graphs, one in 25 of the proposed ones), and
  on a large graph a simulation costs hundreds of proposals. What was tried in vain loses value
  for a while: the network does not know what has been tried.
* **Orders.** A move is first simulated in the order that is there. If that is not far above the
  state's step time, list scheduling by the best state's distances to the end
  (``justification.distances``) makes an order for the new devices, and the better one counts. On
  problems where that hardly ever helps most moves go without.
* **Temperatures** start an order of magnitude below annealing's: a good start is worth keeping.

Threshold and acceptance are annealing's (Metropolis). Complexity: O(moves) simulations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.allocation import empty_ints, zero_flags, zero_single_table, zero_singles
from gnnplace.graph.jit import inner, kernel
from gnnplace.policy.network.move_net import MoveWeights, value_of_move
from gnnplace.policy.search.moves import NUM_MOVE_FEATURES, describe
from gnnplace.policy.search.schedule import empty_schedule, read_schedule
from gnnplace.search.moves import (
    Neighbourhood,
    energy,
    energy_of,
    move_units,
    propose,
    shift,
    undo_move,
    window_of,
)
from gnnplace.search.space import SearchSpace
from gnnplace.simulation.arrays import copy_to
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.justification import distances
from gnnplace.simulation.list_scheduling import list_schedule

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
STALE = 3  # accepted moves after which the schedule is read anew
EXPLORE = 0.3  # temperature of the choice among a handful of moves
WORTH = 50  # new orders that one better one must pay for; else most moves go without
TIRED = 0.5  # taken off the value of a move for each time that its like was tried in vain
RESTED = 0.5  # what is left of that when the state has become better


class Habit(NamedTuple):
    """How the search moves.

    Attributes:
        candidates: random moves that a proposal is chosen from.
        proposed: share of proposals among moves of units; others are blind.
        shifts: share of moves that shift an op in the order.
        loose: a move whose step time in the old order is at most so far above, relatively, gets an
            order of its own.
    """

    candidates: int
    proposed: float
    shifts: float
    loose: float


class State(NamedTuple):
    """Where the search is; all arrays change in place.

    Attributes:
        unit_device: device of each unit. [U]
        device: device of each op. [n]
        order: order of all ops. [n]
        priority: for list scheduling. [n]
        best_device: device of each op in the best state. [n]
        best_order: its order. [n]
        score: predicted seconds with penalty, of the state and of the best state. [2]
        tired: moves tried in vain by their first unit and target, fading. [U, D]
        counts: proposed moves tried, those that were faster; the same of blind moves; orders made,
            those that were better. [6]
    """

    unit_device: IntArray
    device: IntArray
    order: IntArray
    priority: FloatArray
    best_device: IntArray
    best_order: IntArray
    score: FloatArray
    tired: SingleArray
    counts: IntArray


@inner(_nrt=False)
def take_order(state: State, order: IntArray, position: IntArray) -> None:
    """Makes ``order`` the state's, and ``position`` where each op is in it. [n], [n]"""
    copy_to(state.order, order)
    for k in range(len(order)):
        position[order[k]] = k


def new_best(
    compiled: Compiled, reversed_compiled: Compiled, neighbourhood: Neighbourhood, state: State
) -> None:
    """Keeps the state as the best, and makes its order better by justification if that works."""
    state.priority[:] = distances(compiled, reversed_compiled, state.device, state.order)
    order = list_schedule(compiled, state.device, state.priority)
    tried = energy_of(compiled, neighbourhood, state.device, order, state.score[0])
    if tried < state.score[0]:
        state.order[:] = order
        state.score[0] = tried
    state.score[1] = state.score[0]
    state.best_device[:] = state.device
    state.best_order[:] = state.order


def search_kernel(
    compiled: Compiled,
    reversed_compiled: Compiled,
    neighbourhood: Neighbourhood,
    weights: MoveWeights,
    context: SingleArray,
    habit: Habit,
    state: State,
    temperature: float,
    moves: int,
) -> None:
    """``moves`` moves at one temperature; changes ``state`` in place.

    Args:
        compiled: the problem.
        reversed_compiled: the reversed problem.
        neighbourhood: what moves look up.
        weights: the network that values moves.
        context: what the encoder says of each unit. [U, H]
        habit: how to move.
        state: where the search is.
        temperature: in seconds.
        moves: how many to try.
    """
    left = moves
    while left > 0:
        left -= search_until_better(
            compiled, neighbourhood, weights, context, habit, state, temperature, left
        )
        if state.score[0] < state.score[1]:
            new_best(compiled, reversed_compiled, neighbourhood, state)


@kernel
def search_until_better(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    weights: MoveWeights,
    context: SingleArray,
    habit: Habit,
    state: State,
    temperature: float,
    moves: int,
) -> int:
    """At most ``moves`` moves, as ``search_kernel``, up to one that is better than the best state.

    Returns:
        How many moves were tried.
    """
    n, num_units = len(state.order), len(state.unit_device)
    touched = empty_ints(num_units + 16)
    chosen = empty_ints(num_units + 16)
    former = empty_ints(num_units + 16)
    inside = zero_flags(num_units)
    features = zero_singles(NUM_MOVE_FEATURES)
    hidden = zero_single_table(2, len(weights.bias))
    position = empty_ints(n)
    take_order(state, state.order, position)
    seen = empty_schedule(compiled, num_units)
    stale = STALE
    for move in range(moves):
        now = state.score[0]
        threshold = now - temperature * np.log(1.0 - np.random.random())
        if np.random.random() < habit.shifts:
            op = np.random.randint(n)
            low, high = window_of(compiled, neighbourhood, state.order, position, op)
            if high <= low:
                continue
            origin, goal = position[op], np.random.randint(low, high + 1)
            shift(state.order, position, origin, goal)
            tried = energy(compiled, neighbourhood, state.device, state.order, threshold)
            if tried <= threshold:
                state.score[0] = tried
                if tried < state.score[1]:
                    return move + 1
            else:
                shift(state.order, position, goal, origin)
            continue
        proposed = np.random.random() < habit.proposed
        count, target = 0, 0
        if not proposed:
            count, target = propose(neighbourhood, state.unit_device, chosen)
        else:
            if stale >= STALE:
                read_schedule(compiled, state.device, state.order, seen)
                stale = 0
            most = -np.inf
            for _ in range(habit.candidates):
                size, goal = propose(neighbourhood, state.unit_device, touched)
                units = touched[:size]
                if describe(
                    compiled,
                    neighbourhood,
                    seen,
                    state.device,
                    state.unit_device,
                    units,
                    goal,
                    inside,
                    features,
                ):
                    value = value_of_move(weights, context, units, features, hidden)
                    value -= EXPLORE * np.log(-np.log(np.random.random() + 1e-12) + 1e-12)
                    value -= TIRED * state.tired[units[0], goal]
                    if value > most:
                        most, count, target = value, size, goal
                        copy_to(chosen, units)
        if count == 0:
            continue
        if (
            move_units(
                neighbourhood, state.unit_device, state.device, chosen[:count], target, former
            )
            == 0
        ):
            continue
        # First in the order that is there, then, if that is promising, in one of its own.
        limit = max(threshold, now * (1.0 + habit.loose))
        tried = energy(compiled, neighbourhood, state.device, state.order, limit)
        kept = tried <= threshold
        worth = WORTH * (state.counts[5] + 1) > state.counts[4] or np.random.random() < 1.0 / WORTH
        if tried <= limit and habit.loose > 0.0 and worth:
            order = list_schedule(compiled, state.device, state.priority)
            again = energy(compiled, neighbourhood, state.device, order, min(threshold, tried))
            state.counts[4] += 1
            if again < tried and again <= threshold:
                tried, kept = again, True
                state.counts[5] += 1
                take_order(state, order, position)
        which = 0 if proposed else 2
        state.counts[which] += 1
        if not kept:
            undo_move(neighbourhood, state.unit_device, state.device, chosen[:count], former)
            state.tired[chosen[0], target] += 1.0
            continue
        if tried < now:
            state.counts[which + 1] += 1
            for u in range(num_units):
                for d in range(state.tired.shape[1]):
                    state.tired[u, d] *= RESTED
        stale += 1
        state.score[0] = tried
        if tried < state.score[1]:
            return move + 1
    return moves


@inner()
def in_either_order(
    compiled: Compiled, neighbourhood: Neighbourhood, state: State, most: float
) -> float:
    """Score of the state's devices in its order or that of list scheduling, whichever is less.

    inf above ``most`` seconds.
    """
    tried = energy(compiled, neighbourhood, state.device, state.order, most)
    order = list_schedule(compiled, state.device, state.priority)
    return min(tried, energy(compiled, neighbourhood, state.device, order, min(most, tried)))


@kernel
def try_moves(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    state: State,
    features: SingleArray,
    units: IntArray,
    change: FloatArray,
) -> int:
    """Tries random moves of a state and takes each back; how many there are, for learning.

    Args:
        compiled: the problem.
        neighbourhood: what moves look up.
        state: the state; it is as before afterwards.
        features: out: of each move. [K, F]
        units: out: units of each move, as many as ``MoveNet`` looks at, -1 beyond. [K, S]
        change: out: relative change of the step time, in the order that is there or that of list
            scheduling, whichever is less. [K]
    """
    num_units = len(state.unit_device)
    touched = empty_ints(num_units + 16)
    former = empty_ints(num_units + 16)
    inside = zero_flags(num_units)
    seen = empty_schedule(compiled, num_units)
    read_schedule(compiled, state.device, state.order, seen)
    now, done = state.score[0], 0
    for _ in range(10 * len(change)):
        if done == len(change):
            break
        count, target = propose(neighbourhood, state.unit_device, touched)
        moved = touched[:count]
        if not describe(
            compiled,
            neighbourhood,
            seen,
            state.device,
            state.unit_device,
            moved,
            target,
            inside,
            features[done],
        ):
            continue
        move_units(neighbourhood, state.unit_device, state.device, moved, target, former)
        tried = in_either_order(compiled, neighbourhood, state, np.inf)
        undo_move(neighbourhood, state.unit_device, state.device, moved, former)
        change[done] = tried / now - 1.0
        step = max(1, count // units.shape[1])
        for k in range(units.shape[1]):
            units[done, k] = moved[k * step] if k * step < count else -1
        done += 1
    return done


def start_state(space: SearchSpace, unit_device: IntArray, order: IntArray) -> State:
    """A state and best state from a placement; the priority is that of justification."""
    device = space.spread(unit_device)
    score = space.score(device, order)
    return State(
        unit_device.astype(np.int32),
        device,
        order.copy(),
        distances(space.compiled, space.reversed, device, order),
        device.copy(),
        order.copy(),
        np.array([score, score]),
        np.zeros((len(unit_device), space.problem.num_devices), np.float32),
        np.zeros(6, np.int64),
    )


def back_to_best(space: SearchSpace, state: State) -> None:
    """Makes the best state the state."""
    state.device[:] = state.best_device
    state.order[:] = state.best_order
    state.score[0] = state.score[1]
    offset, ops = space.unit_ops
    state.unit_device[:] = state.device[ops[offset[:-1]]]
    state.priority[:] = distances(space.compiled, space.reversed, state.device, state.order)
