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
def take_order(s: State, order: IntArray, position: IntArray) -> None:
    """Makes ``order`` the state's, and ``position`` where each op is in it. [n], [n]"""
    copy_to(s.order, order)
    for k in range(len(order)):
        position[order[k]] = k


def new_best(c: Compiled, r: Compiled, h: Neighbourhood, s: State) -> None:
    """Keeps the state as the best, and makes its order better by justification if that works."""
    s.priority[:] = distances(c, r, s.device, s.order)
    order = list_schedule(c, s.device, s.priority)
    tried = energy_of(c, h, s.device, order, s.score[0])
    if tried < s.score[0]:
        s.order[:] = order
        s.score[0] = tried
    s.score[1] = s.score[0]
    s.best_device[:] = s.device
    s.best_order[:] = s.order


def search_kernel(
    c: Compiled,
    r: Compiled,
    h: Neighbourhood,
    p: MoveWeights,
    context: SingleArray,
    habit: Habit,
    s: State,
    temperature: float,
    moves: int,
) -> None:
    """``moves`` moves at one temperature; changes ``s`` in place.

    Args:
        c: the problem.
        r: the reversed problem.
        h: what moves look up.
        p: the network that values moves.
        context: what the encoder says of each unit. [U, H]
        habit: how to move.
        s: where the search is.
        temperature: in seconds.
        moves: how many to try.
    """
    left = moves
    while left > 0:
        left -= search_until_better(c, h, p, context, habit, s, temperature, left)
        if s.score[0] < s.score[1]:
            new_best(c, r, h, s)


@kernel
def search_until_better(
    c: Compiled,
    h: Neighbourhood,
    p: MoveWeights,
    context: SingleArray,
    habit: Habit,
    s: State,
    temperature: float,
    moves: int,
) -> int:
    """At most ``moves`` moves, as ``search_kernel``, up to one that is better than the best state.

    Returns:
        How many moves were tried.
    """
    n, num_units = len(s.order), len(s.unit_device)
    touched = empty_ints(num_units + 16)
    chosen = empty_ints(num_units + 16)
    former = empty_ints(num_units + 16)
    inside = zero_flags(num_units)
    features = zero_singles(NUM_MOVE_FEATURES)
    hidden = zero_single_table(2, len(p.bias))
    position = empty_ints(n)
    take_order(s, s.order, position)
    seen = empty_schedule(c, num_units)
    stale = STALE
    for move in range(moves):
        now = s.score[0]
        threshold = now - temperature * np.log(1.0 - np.random.random())
        if np.random.random() < habit.shifts:
            op = np.random.randint(n)
            low, high = window_of(c, h, s.order, position, op)
            if high <= low:
                continue
            origin, goal = position[op], np.random.randint(low, high + 1)
            shift(s.order, position, origin, goal)
            tried = energy(c, h, s.device, s.order, threshold)
            if tried <= threshold:
                s.score[0] = tried
                if tried < s.score[1]:
                    return move + 1
            else:
                shift(s.order, position, goal, origin)
            continue
        proposed = np.random.random() < habit.proposed
        count, target = 0, 0
        if not proposed:
            count, target = propose(h, s.unit_device, chosen)
        else:
            if stale >= STALE:
                read_schedule(c, s.device, s.order, seen)
                stale = 0
            most = -np.inf
            for _ in range(habit.candidates):
                size, goal = propose(h, s.unit_device, touched)
                units = touched[:size]
                if describe(c, h, seen, s.device, s.unit_device, units, goal, inside, features):
                    value = value_of_move(p, context, units, features, hidden)
                    value -= EXPLORE * np.log(-np.log(np.random.random() + 1e-12) + 1e-12)
                    value -= TIRED * s.tired[units[0], goal]
                    if value > most:
                        most, count, target = value, size, goal
                        copy_to(chosen, units)
        if count == 0:
            continue
        if move_units(h, s.unit_device, s.device, chosen[:count], target, former) == 0:
            continue
        # First in the order that is there, then, if that is promising, in one of its own.
        limit = max(threshold, now * (1.0 + habit.loose))
        tried = energy(c, h, s.device, s.order, limit)
        kept = tried <= threshold
        worth = WORTH * (s.counts[5] + 1) > s.counts[4] or np.random.random() < 1.0 / WORTH
        if tried <= limit and habit.loose > 0.0 and worth:
            order = list_schedule(c, s.device, s.priority)
            again = energy(c, h, s.device, order, min(threshold, tried))
            s.counts[4] += 1
            if again < tried and again <= threshold:
                tried, kept = again, True
                s.counts[5] += 1
                take_order(s, order, position)
        which = 0 if proposed else 2
        s.counts[which] += 1
        if not kept:
            undo_move(h, s.unit_device, s.device, chosen[:count], former)
            s.tired[chosen[0], target] += 1.0
            continue
        if tried < now:
            s.counts[which + 1] += 1
            for u in range(num_units):
                for d in range(s.tired.shape[1]):
                    s.tired[u, d] *= RESTED
        stale += 1
        s.score[0] = tried
        if tried < s.score[1]:
            return move + 1
    return moves


@inner()
def in_either_order(c: Compiled, h: Neighbourhood, s: State, most: float) -> float:
    """Score of the state's devices in its order or that of list scheduling, whichever is less.

    inf above ``most`` seconds.
    """
    tried = energy(c, h, s.device, s.order, most)
    order = list_schedule(c, s.device, s.priority)
    return min(tried, energy(c, h, s.device, order, min(most, tried)))


@kernel
def try_moves(
    c: Compiled,
    h: Neighbourhood,
    s: State,
    features: SingleArray,
    units: IntArray,
    change: FloatArray,
) -> int:
    """Tries random moves of a state and takes each back; how many there are, for learning.

    Args:
        c: the problem.
        h: what moves look up.
        s: the state; it is as before afterwards.
        features: out: of each move. [K, F]
        units: out: units of each move, as many as ``MoveNet`` looks at, -1 beyond. [K, S]
        change: out: relative change of the step time, in the order that is there or that of list
            scheduling, whichever is less. [K]
    """
    num_units = len(s.unit_device)
    touched = empty_ints(num_units + 16)
    former = empty_ints(num_units + 16)
    inside = zero_flags(num_units)
    seen = empty_schedule(c, num_units)
    read_schedule(c, s.device, s.order, seen)
    now, done = s.score[0], 0
    for _ in range(10 * len(change)):
        if done == len(change):
            break
        count, target = propose(h, s.unit_device, touched)
        moved = touched[:count]
        if not describe(c, h, seen, s.device, s.unit_device, moved, target, inside, features[done]):
            continue
        move_units(h, s.unit_device, s.device, moved, target, former)
        tried = in_either_order(c, h, s, np.inf)
        undo_move(h, s.unit_device, s.device, moved, former)
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


def back_to_best(space: SearchSpace, s: State) -> None:
    """Makes the best state the state."""
    s.device[:] = s.best_device
    s.order[:] = s.best_order
    s.score[0] = s.score[1]
    offset, ops = space.unit_ops
    s.unit_device[:] = s.device[ops[offset[:-1]]]
    s.priority[:] = distances(space.compiled, space.reversed, s.device, s.order)
