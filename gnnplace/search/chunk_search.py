"""Local search whose moves are of chunks: runs of a line of segments that share a device.

Formulation: the state is a device for every segment of a line, one for each segment that stands
alone, and a priority of ops. A move shifts a cut, slides a run of cuts, swaps two chunks or two
devices, gives a run of segments to another device or, with ``NOISE``, only disturbs the priority.
What it makes is list-scheduled by the state's priority and justified once (``justification``); the
seconds of that schedule are its value, and the distances of the justification the new priority. A
device with more work than the threshold rejects a move unseen.

Annealing (Metropolis, the threshold drawn first) in rounds of ``moves_a_round`` moves whatever the
budget is: more time only adds rounds, and what is best is kept, so that a search which is cut off
later is never worse. Rounds start in turn from the best state and from the next of the given
starts. Where memory matters, what would be accepted is simulated, with the penalty of
``SearchSpace.score``.
Complexity: three list schedules a move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.allocation import empty_floats, empty_ints, zero_floats
from gnnplace.graph.jit import inner, kernel
from gnnplace.search.moves import Neighbourhood, energy, neighbourhood, seed_kernel
from gnnplace.search.narrow_problem import NarrowProblem
from gnnplace.search.space import SearchSpace
from gnnplace.simulation.arrays import copy_to, greatest
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.list_scheduling import timed_list_schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
ROUND_OPS = 4_000_000  # moves of a round times ops: about a second
HOTTEST, COLDEST = 0.01, 0.0003  # temperature at a round's beginning and end, of the step time
NOISE = 0.25  # share of moves that disturb the priority


class Chunks(NamedTuple):
    """Where the search is; all arrays change in place.

    Attributes:
        line: units of the line, in order. [S]
        loose: units that stand alone.
        work: seconds of each unit on each device, inf where it may not be. [U, D]
        unit_device: device of each unit. [U]
        priority: of each op. [n]
        best_unit_device: the same in the best state. [U]
        best_priority: its priority. [n]
        best_order: its order. [n]
        score: predicted seconds with penalty, of the state and of the best state. [2]
    """

    line: IntArray
    loose: IntArray
    work: FloatArray
    unit_device: IntArray
    priority: FloatArray
    best_unit_device: IntArray
    best_priority: FloatArray
    best_order: IntArray
    score: FloatArray


@inner(_nrt=False)
def run_of(line: IntArray, unit_device: IntArray, place: int) -> tuple[int, int]:
    """First place of the chunk around ``place`` and the first behind it."""
    d = unit_device[line[place]]
    low, high = place, place + 1
    while low > 0 and unit_device[line[low - 1]] == d:
        low -= 1
    while high < len(line) and unit_device[line[high]] == d:
        high += 1
    return low, high


@inner(_nrt=False)
def give(line: IntArray, unit_device: IntArray, low: int, high: int, target: int) -> None:
    """Gives the segments from ``low`` up to ``high`` to a device."""
    for place in range(max(0, low), min(high, len(line))):
        unit_device[line[place]] = target


@inner(_nrt=False)
def slide(line: IntArray, unit_device: IntArray, low: int, high: int) -> None:
    """Moves the cuts between ``low`` and ``high`` by one place, up or down."""
    if np.random.random() < 0.5:
        for place in range(high - 1, low, -1):
            unit_device[line[place]] = unit_device[line[place - 1]]
    else:
        for place in range(low, high - 1):
            unit_device[line[place]] = unit_device[line[place + 1]]


@inner(_nrt=False)
def change(chunks: Chunks, unit_device: IntArray) -> None:
    """One random move."""
    line, num_devices = chunks.line, chunks.work.shape[1]
    size, kind = len(line), np.random.random()
    if len(chunks.loose) > 0 and (kind < 0.04 or size == 0):
        unit = chunks.loose[np.random.randint(len(chunks.loose))]
        unit_device[unit] = np.random.randint(num_devices)
        return
    place = np.random.randint(size)
    low, high = run_of(line, unit_device, place)
    if kind < 0.45:
        count = 1 + int(np.random.exponential(1.0))
        if np.random.random() < 0.5 and low > 0:
            give(line, unit_device, low, low + count, unit_device[line[low - 1]])
        elif high < size:
            give(line, unit_device, high - count, high, unit_device[line[high]])
    elif kind < 0.65:
        length = 2 + int(np.random.exponential(0.25 * size))
        slide(line, unit_device, place, min(size, place + length))
    elif kind < 0.78:
        other = np.random.randint(size)
        first, last = run_of(line, unit_device, other)
        one, two = unit_device[line[place]], unit_device[line[other]]
        give(line, unit_device, low, high, two)
        give(line, unit_device, first, last, one)
    elif kind < 0.84:
        one, two = unit_device[line[place]], np.random.randint(num_devices)
        for unit in range(len(unit_device)):
            if unit_device[unit] == one:
                unit_device[unit] = two
            elif unit_device[unit] == two:
                unit_device[unit] = one
    elif kind < 0.92:
        give(line, unit_device, low, high, np.random.randint(num_devices))
    else:
        count = 1 + int(np.random.exponential(3.0))
        give(line, unit_device, place, place + count, np.random.randint(num_devices))


@inner(_nrt=False)
def most_work(work: FloatArray, unit_device: IntArray, load: FloatArray) -> float:
    """Seconds of the device with most work; inf where a unit may not be. ``load``: scratch [D]"""
    for d in range(len(load)):
        load[d] = 0.0
    most = 0.0
    for unit in range(len(unit_device)):
        d = unit_device[unit]
        load[d] += work[unit, d]
        most = max(most, load[d])
    return most


@kernel
def justified(
    compiled: Compiled,
    reversed_compiled: Compiled,
    device: IntArray,
    priority: FloatArray,
    finish: FloatArray,
    far: FloatArray,
) -> tuple[float, IntArray]:
    """List schedule and one justification: its seconds and order.

    Args:
        compiled: the problem.
        reversed_compiled: it reversed.
        device: device of each op. [n]
        priority: of each op. [n]
        finish: out: seconds at which each op finishes. [n]
        far: out: seconds from each op's start to the end, the priority of the order. [n]
    """
    timed_list_schedule(compiled, device, priority, finish)
    timed_list_schedule(reversed_compiled, device, finish, far)
    order = timed_list_schedule(compiled, device, far, finish)
    return greatest(finish), order


@kernel
def chunk_kernel(
    compiled: Compiled,
    reversed_compiled: Compiled,
    neighbourhood: Neighbourhood,
    chunks: Chunks,
    first: float,
    last: float,
    moves: int,
) -> None:
    """``moves`` moves while the temperature falls from ``first`` to ``last``, in seconds."""
    n = len(compiled.state)
    device, tried = empty_ints(n), empty_ints(len(chunks.unit_device))
    finish, far, priority = empty_floats(n), empty_floats(n), empty_floats(n)
    load = zero_floats(chunks.work.shape[1])
    for k in range(moves):
        temperature = first * (last / first) ** (k / moves)
        threshold = chunks.score[0] - temperature * np.log(1.0 - np.random.random())
        copy_to(tried, chunks.unit_device)
        noisy = np.random.random() < NOISE
        if not noisy or np.random.random() < 0.5:
            change(chunks, tried)
        copy_to(priority, chunks.priority)
        if noisy:
            spread = 0.3 * np.random.random() ** 2
            for op in range(n):
                priority[op] *= 1.0 + spread * (np.random.random() - 0.5)
        if most_work(chunks.work, tried, load) > threshold:
            continue
        for op in range(n):
            device[op] = tried[compiled.unit_of[op]]
        seconds, order = justified(compiled, reversed_compiled, device, priority, finish, far)
        if seconds > threshold:
            continue
        if neighbourhood.memory_matters or seconds < chunks.score[1]:
            seconds = energy(compiled, neighbourhood, device, order, threshold)
            if seconds > threshold:
                continue
        copy_to(chunks.unit_device, tried)
        copy_to(chunks.priority, far)
        chunks.score[0] = seconds
        if seconds < chunks.score[1]:
            chunks.score[1] = seconds
            copy_to(chunks.best_unit_device, tried)
            copy_to(chunks.best_priority, far)
            copy_to(chunks.best_order, order)


class Start(NamedTuple):
    """A state to start from.

    Attributes:
        score: predicted seconds with penalty.
        unit_device: device of each unit. [U]
        priority: of each op. [n]
        order: of all ops. [n]
    """

    score: float
    unit_device: IntArray
    priority: FloatArray
    order: IntArray


class ChunkSearch:
    """Searches one coarse problem, round by round.

    Args:
        space: the space of the coarse problem.
        narrow: the coarse problem.
        starts: states to start from, the best first; at least one.
        seed: of all randomness.
    """

    def __init__(
        self, space: SearchSpace, narrow: NarrowProblem, starts: Sequence[Start], seed: int
    ) -> None:
        self.space, self.starts, self.rounds = space, starts, 0
        self.neighbourhood = neighbourhood(space)
        self.seeds = np.random.default_rng(seed)
        self.moves_a_round = max(64, ROUND_OPS // space.problem.num_ops)
        self.laps_a_round = 8
        self.lap = 0
        best = starts[0]
        self.chunks = Chunks(
            narrow.line,
            narrow.loose,
            space.work,
            best.unit_device.copy(),
            best.priority.copy(),
            best.unit_device.copy(),
            best.priority.copy(),
            best.order.copy(),
            np.array([best.score, best.score]),
        )

    @property
    def best(self) -> Start:
        """The best state so far."""
        made = self.chunks
        return Start(
            float(made.score[1]),
            made.best_unit_device.copy(),
            made.best_priority.copy(),
            made.best_order.copy(),
        )

    def run_lap(self) -> None:
        """The next lap: a part of a round."""
        step = self.lap % self.laps_a_round
        if step == 0:
            self._begin()
        fall = (COLDEST / HOTTEST) ** (1 / self.laps_a_round)
        hot = HOTTEST * fall**step * float(self.chunks.score[1])
        seed_kernel(int(self.seeds.integers(2**31)))
        compiled, moves = self.space.compiled, self.moves_a_round // self.laps_a_round
        chunk_kernel(
            compiled,
            self.space.reversed,
            self.neighbourhood,
            self.chunks,
            hot,
            hot * fall,
            moves,
        )
        self.lap += 1

    def _begin(self) -> None:
        """A round starts: from the best state, or from the next start."""
        number = self.lap // self.laps_a_round
        fresh = self.starts[(number // 2) % len(self.starts)]
        start = fresh if number % 2 == 0 else self.best
        self.chunks.unit_device[:] = start.unit_device
        self.chunks.priority[:] = start.priority
        self.chunks.score[0] = start.score
