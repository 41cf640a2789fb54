"""Local search for the throughput objective: annealing over devices of units.

Formulation: the energy of a placement is its largest load, plus a small share of the mean load (so
that moves on less busy devices count too) and a penalty on bytes of state above memory. A move puts
a unit on a neighbour's or a random device, swaps the devices of two units, or puts a run of units
of an order on the device of the run beside it. Loads are updated only for the flows of the moved
units. Acceptance is by Metropolis et al. (1953); the temperature falls geometrically.
Complexity: O(flows of the unit x their readers) a move.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import copy_to, empty_ints, greatest, inner, kernel, zero_int_table
from gnnplace.placers.search.moves import draw_threshold, seed_kernel
from gnnplace.placers.search.space import NO_BUDGET
from gnnplace.placers.throughput.load import Flows, loads
from gnnplace.simulation import with_messages

MEAN = 0.05  # The weight of the mean load in the energy
HOT, FALL = 0.02, 300.0  # First temperature, of the start's energy; how far it falls.
MOVES_WITHOUT_BUDGET = 100_000
ROUNDS = 50
PENALTY = 10.0  # energies of the start, for a whole cluster's memory in excess


@kernel
def count_readers(flows: Flows, device: IntArray) -> IntArray:
    """Return the readers of each flow on each device. [F, D]"""
    readers = zero_int_table(len(flows.producer), len(flows.memory))
    for k in range(len(flows.producer)):
        for j in range(flows.offset[k], flows.offset[k + 1]):
            readers[k, device[flows.reader[j]]] += 1
    return readers


@inner()
def add_flow(
    flows: Flows,
    index: int,
    source: int,
    readers: IntArray,
    sign: int,
    load: FloatArray,
) -> None:
    """Add what one flow loads devices with, or take it off (``sign`` -1)."""
    for d in range(len(load)):
        if d != source and readers[index, d] > 0:
            latency = flows.latency[source, d]
            pace = flows.pace[source, d]
            cost = sign * with_messages(
                0.0, flows.tensors[index], flows.size[index], latency, pace
            )
            load[source] += cost
            load[d] += cost


@inner()
def move(
    flows: Flows,
    unit: int,
    target: int,
    device: IntArray,
    readers: IntArray,
    load: FloatArray,
    resident: FloatArray,
) -> None:
    """Put a unit on another device; everything that depends on it follows."""
    source = device[unit]
    for j in range(flows.unit_offset[unit], flows.unit_offset[unit + 1]):
        k = flows.unit_flow[j]
        add_flow(flows, k, device[flows.producer[k]], readers, -1, load)
        if flows.producer[k] == unit:
            add_flow(flows, k, target, readers, 1, load)
        else:
            readers[k, source] -= 1
            readers[k, target] += 1
            add_flow(flows, k, device[flows.producer[k]], readers, 1, load)
    load[source] -= flows.work[unit, source]
    load[target] += flows.work[unit, target]
    resident[source] -= flows.state[unit]
    resident[target] += flows.state[unit]
    device[unit] = target


@inner()
def energy(
    flows: Flows, load: FloatArray, resident: FloatArray, penalty: float
) -> float:
    """Return what annealing lowers."""
    excess = 0.0
    largest = load[0]
    total = 0.0
    for d in range(len(load)):
        excess += max(0.0, resident[d] - flows.memory[d])
        largest = max(largest, load[d])
        total += load[d]
    return largest + MEAN * (total / len(load)) + penalty * excess


@inner(_nrt=False)
def fits(flows: Flows, resident: FloatArray) -> bool:
    """Return whether state fits on every device."""
    over = False
    for d in range(len(resident)):
        over |= resident[d] > flows.memory[d]
    return not over


@inner()
def neighbour(flows: Flows, unit: int) -> int:
    """Return a random unit that makes what ``unit`` reads or reads what it makes; itself if
    none.
    """
    first = flows.unit_offset[unit]
    last = flows.unit_offset[unit + 1]
    if first == last:
        return unit
    k = flows.unit_flow[np.random.randint(first, last)]
    if flows.producer[k] != unit:
        return flows.producer[k]
    return flows.reader[np.random.randint(flows.offset[k], flows.offset[k + 1])]


@inner()
def propose(
    flows: Flows,
    order: IntArray,
    rank: IntArray,
    device: IntArray,
    units: IntArray,
    goals: IntArray,
) -> int:
    """Write the units of a random move and the devices they go to; return how many."""
    unit = np.random.randint(len(device))
    num_devices = len(flows.memory)
    kind = np.random.random()
    units[0], goals[0] = unit, np.random.randint(num_devices)
    if kind < 0.4:
        goals[0] = device[neighbour(flows, unit)]
        return 1
    if kind < 0.6:
        return 1
    if kind < 0.8:
        partner = np.random.randint(len(device))
        goals[0], units[1], goals[1] = device[partner], partner, device[unit]
        return 2
    length = 1 + int(len(device) * 2.0 ** (-1.0 - 6.0 * np.random.random()))
    first = rank[unit]
    last = min(len(order), first + length)
    goal = device[order[max(0, first - 1)]]
    if np.random.random() < 0.5:
        goal = device[order[min(len(order) - 1, last)]]
    for p in range(first, last):
        units[p - first] = order[p]
        goals[p - first] = goal
    return last - first


class AnnealingState(NamedTuple):
    """The state of an annealing, which its moves change.

    Attributes:
        order: The order of the units, for moves of runs. [U]
        rank: Place of each unit in ``order``. [U]
        device: Device of each unit. [U]
        readers: Readers of each flow on each device.
        load: Seconds of each device. [D]
        resident: Resident bytes of each device. [D]
        best_device: Device of each unit in the best state that fits. [U]
    """

    order: IntArray
    rank: IntArray
    device: IntArray
    readers: IntArray
    load: FloatArray
    resident: FloatArray
    best_device: IntArray


@kernel
def anneal_kernel(
    flows: Flows,
    state: AnnealingState,
    penalty: float,
    temperature: float,
    moves: int,
    best: float,
) -> float:
    """Try ``moves`` moves at one temperature; return the least largest load that fits, or ``best``.

    Args:
        flows: The units, and what travels between them.
        state: Where the annealing is; changed.
        penalty: Seconds that a byte above the memory counts as.
        temperature: The temperature in seconds.
        moves: How many to try.
        best: Seconds of the largest load of the best state so far.
    """
    order, rank, device, readers, load, resident, best_device = state
    size = max(2, len(device))
    units = empty_ints(size)
    goals = empty_ints(size)
    former = empty_ints(size)
    current = energy(flows, load, resident, penalty)
    for _ in range(moves):
        count = propose(flows, order, rank, device, units, goals)
        changed = 0
        for i in range(count):
            former[i] = device[units[i]]
            if goals[i] != former[i] and flows.work[units[i], goals[i]] < np.inf:
                move(flows, units[i], goals[i], device, readers, load, resident)
                changed += 1
        if changed == 0:
            continue
        tried = energy(flows, load, resident, penalty)
        if tried > draw_threshold(current, temperature):
            for i in range(count - 1, -1, -1):
                if device[units[i]] != former[i]:
                    move(flows, units[i], former[i], device, readers, load, resident)
            continue
        current = tried
        if greatest(load) < best and fits(flows, resident):
            best = greatest(load)
            copy_to(best_device, device)
    return best


def fresh_loads(flows: Flows, device: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the seconds and resident bytes of each device, summed anew. [D], [D]"""
    resident = np.bincount(device, flows.state, len(flows.memory))
    return loads(flows, device), resident.astype(np.float64)


def local_search(
    flows: Flows,
    order: IntArray,
    start: IntArray,
    rng: np.random.Generator,
    deadline: float,
    *,
    share: float = 1.0,
) -> IntArray:
    """Return the best devices of units found from ``start`` that fit; ``start`` itself if none is
    better.

    Args:
        flows: the units, and what travels between them.
        order: the order of the units, for moves of runs. [U]
        start: device of each unit. [U]
        rng: the source of the seed of the kernels.
        deadline: when to be back; ``NO_BUDGET``: a fixed number of moves.
        share: the share of the memory that state may take.
    """
    tight = _finite(flows._replace(memory=flows.memory * share))
    device = start.astype(np.int32)
    best_device = start.astype(np.int32)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    readers = count_readers(tight, device)
    load, resident = fresh_loads(tight, device)
    if (resident <= tight.memory).all():
        best = float(load.max())
    else:
        best = np.inf
    scale = float(load.max())
    penalty = (
        PENALTY
        * scale
        / max(1.0, float(np.minimum(flows.memory, flows.state.sum()).sum()))
    )
    seed_kernel(int(rng.integers(2**31)))
    timed = deadline > NO_BUDGET
    begin = time.perf_counter()
    per_call = 2_000
    turn = 0
    while time.perf_counter() < deadline if timed else turn < ROUNDS:
        called = time.perf_counter()
        if timed:
            part = (called - begin) / (deadline - begin)
        else:
            part = turn / ROUNDS
        best = anneal_kernel(
            tight,
            AnnealingState(
                order=order,
                rank=rank,
                device=device,
                readers=readers,
                load=load,
                resident=resident,
                best_device=best_device,
            ),
            penalty,
            HOT * scale * FALL**-part,
            per_call if timed else MOVES_WITHOUT_BUDGET // ROUNDS,
            best,
        )
        # Sums that are changed a million times drift.
        load, resident = fresh_loads(tight, device)
        turn += 1
        if timed:
            took = max(1e-6, time.perf_counter() - called)
            wanted = max((deadline - begin) / ROUNDS, 1e-3)
            per_call = int(np.clip(per_call * wanted / took, 10, 1_000_000))
    return best_device


def _finite(flows: Flows) -> Flows:
    """Return the flows with missing links so dear that nothing uses them, but not infinite."""
    finite_work = np.where(np.isfinite(flows.work), flows.work, 0.0)
    dear = 1e3 * (float(finite_work.sum()) + 1.0)
    linked = np.isfinite(flows.latency)
    latencies = flows.latency[linked]
    slowest_latency = float(latencies.max(initial=0.0))
    all_bytes_seconds = float(flows.pace.max() * flows.size.sum())
    dear += 1e3 * (slowest_latency + all_bytes_seconds)
    return flows._replace(latency=np.where(linked, flows.latency, dear))
