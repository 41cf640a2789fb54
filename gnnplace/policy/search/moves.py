"""Moves whose orders follow the devices: local search that starts from a good placement.

Formulation: the state is a device for every unit and one order of all ops, as in annealing. What
differs, and why:

* **Orders.** A move is first simulated in the order that is there. If that is not far above the
  state's step time, list scheduling by the best state's distances to the end
  (``justification.distances``) makes an order for the new devices, and the better one counts. On
  problems where that hardly ever helps most moves go without.
* **Temperatures** start an order of magnitude below annealing's: a good start is worth keeping.

Threshold and acceptance are annealing's (Metropolis), and so are the moves, all drawn at random: a
network that valued them was no better (docs/learned.md). Complexity: O(moves) simulations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray, LongArray
from gnnplace.graph.jit import inner, kernel
from gnnplace.graph.kernel_arrays import copy_to, empty_ints
from gnnplace.placers.search.moves import (
    Neighbourhood,
    energy,
    energy_of,
    move_units,
    propose,
    shift,
    undo_move,
    window_of,
)
from gnnplace.placers.search.space import SearchSpace
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.justification import distances
from gnnplace.simulation.list_scheduling import list_schedule

WORTH = 50  # new orders that one better one must pay for; else most moves go without


class Habit(NamedTuple):
    """How the search moves.

    Attributes:
        shifts: share of moves that shift an op in the order.
        loose: a move whose step time in the old order is at most so far above, relatively, gets an
            order of its own.
    """

    shifts: float
    loose: float


class SearchState(NamedTuple):
    """Where the search is; all arrays change in place.

    Attributes:
        unit_device: device of each unit. [U]
        device: device of each op. [n]
        order: order of all ops. [n]
        priority: for list scheduling. [n]
        best_device: device of each op in the best state. [n]
        best_order: its order. [n]
        score: predicted seconds with penalty, of the state and of the best state. [2]
        orders: how many were made, and how many of them were better. [2]
    """

    unit_device: IntArray
    device: IntArray
    order: IntArray
    priority: FloatArray
    best_device: IntArray
    best_order: IntArray
    score: FloatArray
    orders: LongArray


@inner(_nrt=False)
def take_order(state: SearchState, order: IntArray, position: IntArray) -> None:
    """Makes ``order`` the state's, and ``position`` where each op is in it. [n], [n]"""
    copy_to(state.order, order)
    for k in range(len(order)):
        position[order[k]] = k


def new_best(
    compiled: Compiled,
    reversed_compiled: Compiled,
    neighbourhood: Neighbourhood,
    state: SearchState,
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
    habit: Habit,
    state: SearchState,
    temperature: float,
    moves: int,
) -> None:
    """``moves`` moves at one temperature; changes ``state`` in place.

    Args:
        compiled: the problem as the simulator has it.
        reversed_compiled: the reversed problem as the simulator has it.
        neighbourhood: what moves look up.
        habit: how often orders are shifted or made anew.
        state: where the search is.
        temperature: seconds by which a move may well be worse.
        moves: how many to try.
    """
    left = moves
    while left > 0:
        left -= search_until_better(compiled, neighbourhood, habit, state, temperature, left)
        if state.score[0] < state.score[1]:
            new_best(compiled, reversed_compiled, neighbourhood, state)


@kernel
def search_until_better(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    habit: Habit,
    state: SearchState,
    temperature: float,
    moves: int,
) -> int:
    """At most ``moves`` moves, as ``search_kernel``, up to one that is better than the best state.

    Returns:
        How many moves were tried.
    """
    n, num_units = len(state.order), len(state.unit_device)
    touched = empty_ints(num_units + 16)
    former = empty_ints(num_units + 16)
    position = empty_ints(n)
    take_order(state, state.order, position)
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
            if tried > threshold:
                shift(state.order, position, goal, origin)
                continue
        else:
            count, target = propose(neighbourhood, state.unit_device, touched)
            units, device = touched[:count], state.device
            if move_units(neighbourhood, state.unit_device, device, units, target, former) == 0:
                continue
            limit = max(threshold, now * (1.0 + habit.loose))
            tried = energy(compiled, neighbourhood, device, state.order, limit)
            if tried <= limit and is_worth_an_order(habit, state):
                tried = in_own_order(compiled, neighbourhood, state, position, threshold, tried)
            if tried > threshold:
                undo_move(neighbourhood, state.unit_device, device, units, former)
                continue
        state.score[0] = tried
        if tried < state.score[1]:
            return move + 1
    return moves


@inner(_nrt=False)
def is_worth_an_order(habit: Habit, state: SearchState) -> bool:
    """Whether a move is to get an order of its own: always while that pays, else now and then."""
    if habit.loose <= 0.0:
        return False
    pays = WORTH * (state.orders[1] + 1) > state.orders[0]
    return pays or np.random.random() < 1.0 / WORTH


@inner()
def in_own_order(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    state: SearchState,
    position: IntArray,
    threshold: float,
    tried: float,
) -> float:
    """Score of the state's devices in an order of their own if that is kept, else ``tried``."""
    order = list_schedule(compiled, state.device, state.priority)
    again = energy(compiled, neighbourhood, state.device, order, min(threshold, tried))
    state.orders[0] += 1
    if again >= tried or again > threshold:
        return tried
    state.orders[1] += 1
    take_order(state, order, position)
    return again


def start_state(space: SearchSpace, unit_device: IntArray, order: IntArray) -> SearchState:
    """A state and best state from a placement; the priority is that of justification."""
    device = space.spread(unit_device)
    score = space.score(device, order)
    return SearchState(
        unit_device.astype(np.int32),
        device,
        order.copy(),
        distances(space.compiled, space.reversed, device, order),
        device.copy(),
        order.copy(),
        np.array([score, score]),
        np.zeros(2, np.int64),
    )


def back_to_best(space: SearchSpace, state: SearchState) -> None:
    """Makes the best state the state."""
    state.device[:] = state.best_device
    state.order[:] = state.best_order
    state.score[0] = state.score[1]
    offset, ops = space.unit_ops
    state.unit_device[:] = state.device[ops[offset[:-1]]]
    state.priority[:] = distances(space.compiled, space.reversed, state.device, state.order)
