"""Kernels that searches share: moves of units and of the order, and the energy of a state.

A state is a device for every unit and one order of all ops. The energy is the simulated step time,
plus a penalty on bytes above the memory limits. Moves:

* one unit to the device of a neighbour, or to any allowed device;
* a patch: a unit and its neighbours in the graph to one device;
* a range of units in coordinate order to the device before or after it (moves cuts and chunks);
* an op to another place in the order between its inputs and its consumers (its window).

Complexity: a move is O(ops moved), an energy is one simulation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, IntArray
from gnnplace.graph import empty_floats, inner, kernel
from gnnplace.placers.search.space import SearchSpace
from gnnplace.simulation import (
    Compiled,
    excess_kernel,
    list_schedule_in_kernel,
    step_time_kernel,
)

WINDOW = 60


class Neighbourhood(NamedTuple):
    """Tables for moves: ops and neighbours of units, units by coordinate, allowed devices."""

    op_offset: IntArray
    ops: IntArray
    edge_offset: IntArray
    neighbour: IntArray
    unit_order: IntArray
    unit_rank: IntArray
    allowed: BoolArray
    producer: IntArray
    penalty: float
    memory_matters: bool


@kernel
def seed_kernel(seed: int) -> None:
    """Seed the kernels' random numbers."""
    np.random.seed(seed)


@inner(_nrt=False)
def draw_threshold(now: float, temperature: float) -> float:
    """Return the most energy that is accepted after ``now``, as Metropolis et al. (1953) draw it.

    It is drawn before a move is tried: what is above it need not be known.
    """
    return now - temperature * np.log(1.0 - np.random.random())


@inner(inline="always")
def energy(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    device: IntArray,
    order: IntArray,
    cutoff: float,
) -> float:
    """Return the simulated seconds plus the penalty; inf above ``cutoff``."""
    if not neighbourhood.memory_matters:
        return step_time_kernel(compiled, device, order, cutoff)
    seconds, excess = excess_kernel(compiled, device, order, cutoff)
    memory = 0.0
    for d in range(len(compiled.memory)):
        memory += compiled.memory[d]
    return seconds + neighbourhood.penalty * excess / max(1.0, memory)


def compute_energy(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    device: IntArray,
    order: IntArray,
    cutoff: float,
) -> float:
    """Return ``energy`` for callers that are no kernels."""
    if not neighbourhood.memory_matters:
        return float(step_time_kernel(compiled, device, order, cutoff))
    seconds, excess = excess_kernel(compiled, device, order, cutoff)
    return float(
        seconds
        + neighbourhood.penalty
        * excess
        / max(1.0, float(np.cumsum(compiled.memory)[-1]))
    )


@inner(_nrt=False)
def find_window(
    compiled: Compiled,
    neighbourhood: Neighbourhood,
    order: IntArray,
    position: IntArray,
    op: int,
) -> tuple[int, int]:
    """Return the first and last position that ``op`` may take between its inputs and its
    consumers.
    """
    current = position[op]
    low = max(0, current - WINDOW)
    high = min(len(order) - 1, current + WINDOW)
    for j in range(compiled.input_offset[op], compiled.input_offset[op + 1]):
        low = max(low, position[neighbourhood.producer[compiled.input_tensor[j]]] + 1)
    for j in range(compiled.op_tensor_offset[op], compiled.op_tensor_offset[op + 1]):
        tensor = compiled.op_tensor[j]
        for k in range(
            compiled.consumer_offset[tensor], compiled.consumer_offset[tensor + 1]
        ):
            high = min(high, position[compiled.consumer[k]] - 1)
    return low, high


@inner(_nrt=False)
def shift(order: IntArray, position: IntArray, origin: int, goal: int) -> None:
    """Move the op at position ``origin`` to ``goal``, the ones between by one."""
    op = order[origin]
    step = 1 if goal > origin else -1
    for k in range(origin, goal, step):
        order[k] = order[k + step]
        position[order[k]] = k
    order[goal] = op
    position[op] = goal


@inner(_nrt=False)
def passes_none(device: IntArray, order: IntArray, origin: int, goal: int) -> bool:
    """Return whether a shift leaves every device's own sequence as it is."""
    d = device[order[origin]]
    step = 1 if goal > origin else -1
    k = origin + step
    while k != goal + step and device[order[k]] != d:
        k += step
    return k == goal + step


@inner(inline="always")
def renew_order(compiled: Compiled, device: IntArray, order: IntArray) -> IntArray:
    """Return the order that list scheduling makes where ``order`` says who goes first. [n]"""
    priority = empty_floats(len(order))
    for k in range(len(order)):
        priority[order[k]] = -k
    return list_schedule_in_kernel(compiled, device, priority)


@inner(_nrt=False)
def propose(
    neighbourhood: Neighbourhood, unit_device: IntArray, touched: IntArray
) -> tuple[int, int]:
    """Propose units of a random move and the device they go to: how many are ``touched``, the
    target.
    """
    num_units, num_devices = neighbourhood.allowed.shape
    unit = np.random.randint(num_units)
    kind = np.random.random()
    target = np.random.randint(num_devices)
    low = neighbourhood.edge_offset[unit]
    high = neighbourhood.edge_offset[unit + 1]
    touched[0] = unit
    if kind < 0.5:
        if kind < 0.35 and high > low:
            target = unit_device[neighbourhood.neighbour[np.random.randint(low, high)]]
        return 1, target
    if kind < 0.7:
        count = 1
        for k in range(low, min(high, low + 12)):
            touched[count] = neighbourhood.neighbour[k]
            count += 1
        return count, target
    first = neighbourhood.unit_rank[unit]
    longest = max(1, int(num_units * 2.0 ** (-1.0 - 6.0 * np.random.random())))
    last = min(num_units, first + longest)
    if kind < 0.9:
        from_before = np.random.random() < 0.5
        if from_before:
            edge = max(0, first - 1)
        else:
            edge = min(num_units - 1, last)
        target = unit_device[neighbourhood.unit_order[edge]]
    for k in range(first, last):
        touched[k - first] = neighbourhood.unit_order[k]
    return last - first, target


@inner(_nrt=False)
def move_units(
    neighbourhood: Neighbourhood,
    unit_device: IntArray,
    device: IntArray,
    units: IntArray,
    target: int,
    former: IntArray,
) -> int:
    """Move ``units`` to ``target`` where they may be there; return how many moved.

    ``former`` receives the device that each of them had, for ``undo_move``.
    """
    changed = 0
    for i in range(len(units)):
        unit = units[i]
        former[i] = unit_device[unit]
        if unit_device[unit] != target and neighbourhood.allowed[unit, target]:
            changed += 1
            unit_device[unit] = target
            for k in range(
                neighbourhood.op_offset[unit], neighbourhood.op_offset[unit + 1]
            ):
                device[neighbourhood.ops[k]] = target
    return changed


@inner(_nrt=False)
def undo_move(
    neighbourhood: Neighbourhood,
    unit_device: IntArray,
    device: IntArray,
    units: IntArray,
    former: IntArray,
) -> None:
    """Put ``units`` back where ``move_units`` found them, the last one first."""
    for i in range(len(units) - 1, -1, -1):
        unit = units[i]
        unit_device[unit] = former[i]
        for k in range(
            neighbourhood.op_offset[unit], neighbourhood.op_offset[unit + 1]
        ):
            device[neighbourhood.ops[k]] = former[i]


def neighbourhood(space: SearchSpace) -> Neighbourhood:
    """Return the arrays that moves look up."""
    edge_offset, neighbour = space.unit_edges
    op_offset, ops = space.unit_ops
    rank = np.empty_like(space.unit_order)
    rank[space.unit_order] = np.arange(len(rank), dtype=np.int32)
    return Neighbourhood(
        op_offset=op_offset,
        ops=ops,
        edge_offset=edge_offset,
        neighbour=neighbour,
        unit_order=space.unit_order,
        unit_rank=rank,
        allowed=space.problem.unit_allowed,
        producer=space.problem.graph.producer.copy(),
        penalty=space.penalty,
        memory_matters=space.memory_matters,
    )
