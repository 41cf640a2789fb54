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
from gnnplace.search.lean import lean
from gnnplace.search.moves import Neighbourhood, energy, neighbourhood, seed_kernel
from gnnplace.search.narrow_problem import NarrowProblem
from gnnplace.search.space import SearchSpace
from gnnplace.simulation.arrays import copy_to, greatest
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.justification import reversed_problem
from gnnplace.simulation.list_scheduling import timed_list_schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
CUT, SLIDE, SWAP_CHUNKS, SWAP_DEVICES, GIVE_CHUNK, GIVE_RUN, ALONE, ORDER = range(8)
PRIOR = (0.36, 0.18, 0.11, 0.05, 0.07, 0.07, 0.04, 0.12)  # share of each kind of move at first
CURIOUS = 0.3  # share of moves whose kind is drawn by that, not by use
HOPED, FORGOTTEN = 0.1, 0.02  # use of a kind at first, and how much a move changes what is thought
LAP_OPS = 500_000  # moves of a lap times ops: some 50 ms
FIRST_LAPS, MOST_LAPS = 4, 64  # laps of each member in the first round, and in any
MEMBERS = 3
HOTTEST, COLDEST = 0.01, 0.0003  # temperature at a round's beginning and end, of the step time
NOISE = 0.12  # share of other moves that disturb the priority as well
HOPELESS = 1.04  # a schedule so much longer than wanted is not justified
ROUNDING = 1e-9


class Chunks(NamedTuple):
    """Where the search is; all arrays change in place.

    Attributes:
        line: units of the line, in order. [S]
        loose: units that stand alone.
        work: seconds of each unit on each device, inf where it may not be. [U, D]
        unit_device: device of each unit. [U]
        priority: of each op. [n]
        score: predicted seconds with penalty. [1]
        best_unit_device: device of each unit in the best state of all members. [U]
        best_priority: its priority. [n]
        best_order: its order. [n]
        best_score: its seconds. [1]
        prior: share of each kind of move at first. [kinds]
        useful: share of its moves that were better than the state, the latest most. [kinds]
    """

    line: IntArray
    loose: IntArray
    work: FloatArray
    unit_device: IntArray
    priority: FloatArray
    score: FloatArray
    best_unit_device: IntArray
    best_priority: FloatArray
    best_order: IntArray
    best_score: FloatArray
    prior: FloatArray
    useful: FloatArray


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
def choose_kind(chunks: Chunks) -> int:
    """A kind of move: as often as it is of use, but each now and then."""
    total = 0.0
    for kind in range(len(chunks.prior)):
        total += chunks.prior[kind] * chunks.useful[kind]
    drawn, last = np.random.random(), len(chunks.prior) - 1
    for kind in range(last):
        share = chunks.prior[kind] * chunks.useful[kind] / total
        drawn -= CURIOUS * chunks.prior[kind] + (1.0 - CURIOUS) * share
        if drawn < 0.0:
            return kind
    return last


@inner(_nrt=False)
def change(chunks: Chunks, unit_device: IntArray, kind: int) -> None:
    """One random move of that kind; ``ALONE`` where there is no line."""
    line, num_devices = chunks.line, chunks.work.shape[1]
    size = len(line)
    if kind == ORDER:
        return
    if kind == ALONE or size == 0:
        unit = chunks.loose[np.random.randint(len(chunks.loose))]
        unit_device[unit] = np.random.randint(num_devices)
        return
    place = np.random.randint(size)
    low, high = run_of(line, unit_device, place)
    if kind == CUT:
        count = 1 + int(np.random.exponential(1.0))
        if np.random.random() < 0.5 and low > 0:
            give(line, unit_device, low, low + count, unit_device[line[low - 1]])
        elif high < size:
            give(line, unit_device, high - count, high, unit_device[line[high]])
    elif kind == SLIDE:
        length = 2 + int(np.random.exponential(0.25 * size))
        slide(line, unit_device, place, min(size, place + length))
    elif kind == SWAP_CHUNKS:
        other = np.random.randint(size)
        first, last = run_of(line, unit_device, other)
        one, two = unit_device[line[place]], unit_device[line[other]]
        give(line, unit_device, low, high, two)
        give(line, unit_device, first, last, one)
    elif kind == SWAP_DEVICES:
        one, two = unit_device[line[place]], np.random.randint(num_devices)
        for unit in range(len(unit_device)):
            if unit_device[unit] == one:
                unit_device[unit] = two
            elif unit_device[unit] == two:
                unit_device[unit] = one
    elif kind == GIVE_CHUNK:
        give(line, unit_device, low, high, np.random.randint(num_devices))
    else:
        count = 1 + int(np.random.exponential(3.0))
        give(line, unit_device, place, place + count, np.random.randint(num_devices))


@inner(_nrt=False)
def same(one: IntArray, other: IntArray) -> bool:
    """Whether two arrays of one length are equal."""
    for k in range(len(one)):
        if one[k] != other[k]:  # noqa: SIM110 (numba knows no ``all``)
            return False
    return True


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
    limit: float,
) -> tuple[float, IntArray]:
    """List schedule and one justification: its seconds, inf where it is hopeless, and order.

    Args:
        compiled: the problem.
        reversed_compiled: it reversed.
        device: device of each op. [n]
        priority: of each op. [n]
        finish: out: seconds at which each op finishes. [n]
        far: out: seconds from each op's start to the end, the priority of the order. [n]
        limit: seconds; a schedule that is ``HOPELESS`` times as long is not justified.
    """
    order = timed_list_schedule(compiled, device, priority, finish)
    if greatest(finish) > HOPELESS * limit:
        return np.inf, order
    timed_list_schedule(reversed_compiled, device, finish, far)
    if greatest(far) > HOPELESS * limit:
        return np.inf, order
    order = timed_list_schedule(compiled, device, far, finish)
    return greatest(finish), order


@kernel
def chunk_kernel(
    compiled: Compiled,
    lean: Compiled,
    lean_reversed: Compiled,
    neighbourhood: Neighbourhood,
    chunks: Chunks,
    first: float,
    last: float,
    moves: int,
) -> None:
    """``moves`` moves while the temperature falls from ``first`` to ``last``, in seconds.

    Args:
        compiled: the problem.
        lean: it without consumptions that others imply.
        lean_reversed: that reversed.
        neighbourhood: what an energy takes.
        chunks: where the search is.
        first: temperature of the first move.
        last: that of the last.
        moves: how many to try.
    """
    n = len(compiled.state)
    device, tried = empty_ints(n), empty_ints(len(chunks.unit_device))
    finish, far, priority = empty_floats(n), empty_floats(n), empty_floats(n)
    load = zero_floats(chunks.work.shape[1])
    for k in range(moves):
        temperature = first * (last / first) ** (k / moves)
        threshold = chunks.score[0] - temperature * np.log(1.0 - np.random.random())
        copy_to(tried, chunks.unit_device)
        kind = choose_kind(chunks)
        change(chunks, tried, kind)
        noisy = kind == ORDER or np.random.random() < NOISE
        if not noisy and same(tried, chunks.unit_device):
            continue
        if most_work(chunks.work, tried, load) > threshold:
            continue
        copy_to(priority, chunks.priority)
        if noisy:
            spread = 0.3 * np.random.random() ** 2
            for op in range(n):
                priority[op] *= 1.0 + spread * (np.random.random() - 0.5)
        for op in range(n):
            device[op] = tried[compiled.unit_of[op]]
        seconds, order = justified(lean, lean_reversed, device, priority, finish, far, threshold)
        if seconds <= threshold and (
            neighbourhood.memory_matters or seconds < chunks.best_score[0]
        ):
            seconds = energy(compiled, neighbourhood, device, order, threshold)
        better = seconds < chunks.score[0] * (1.0 - ROUNDING)
        chunks.useful[kind] += FORGOTTEN * ((1.0 if better else 0.0) - chunks.useful[kind])
        if seconds > threshold:
            continue
        copy_to(chunks.unit_device, tried)
        copy_to(chunks.priority, far)
        chunks.score[0] = seconds
        if seconds < chunks.best_score[0]:
            chunks.best_score[0] = seconds
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
        self.space, self.starts = space, starts
        self.neighbourhood = neighbourhood(space)
        self.seeds = np.random.default_rng(seed)
        self.lean = lean(space.problem, space.compiled)
        self.lean_reversed = reversed_problem(self.lean)
        self.moves_a_lap = max(8, LAP_OPS // space.problem.num_ops)
        self.laps_a_round, self.step, self.lap, self.fresh = FIRST_LAPS, 0, 0, 0
        best = starts[0]
        prior = np.array(PRIOR)
        if len(narrow.loose) == 0:
            prior[ALONE] = 0.0
        if len(narrow.line) == 0:
            prior[:] = np.arange(len(prior)) == ALONE
        shared = (
            best.unit_device.copy(),
            best.priority.copy(),
            best.order.copy(),
            np.array([best.score]),
            prior / prior.sum(),
            np.full(len(PRIOR), HOPED),
        )
        self.members = [
            Chunks(
                narrow.line,
                narrow.loose,
                space.work,
                start.unit_device.copy(),
                start.priority.copy(),
                np.array([start.score]),
                *shared,
            )
            for start in starts[:MEMBERS]
        ]

    @property
    def best(self) -> Start:
        """The best state so far."""
        made = self.members[0]
        return Start(
            float(made.best_score[0]),
            made.best_unit_device.copy(),
            made.best_priority.copy(),
            made.best_order.copy(),
        )

    def run_lap(self) -> None:
        """The next lap: some moves of one member of the population."""
        laps = self.laps_a_round * len(self.members)
        if self.step == laps:
            self._begin()
            laps = self.laps_a_round * len(self.members)
        generation, number = divmod(self.step, len(self.members))
        if number == 0 and generation > 0:
            self._select()
        self._run(self.members[number], generation / self.laps_a_round)
        self.step += 1
        self.lap += 1

    def _run(self, member: Chunks, share: float) -> None:
        """Moves of one member, so far into the round."""
        fall = COLDEST / HOTTEST
        hot = HOTTEST * fall**share * float(member.best_score[0])
        seed_kernel(int(self.seeds.integers(2**31)))
        chunk_kernel(
            self.space.compiled,
            self.lean,
            self.lean_reversed,
            self.neighbourhood,
            member,
            hot,
            hot * fall ** (1 / self.laps_a_round),
            self.moves_a_lap,
        )

    def _select(self) -> None:
        """The worst member goes on from where the best one is."""
        ranked = sorted(self.members, key=lambda member: float(member.score[0]))
        _move_to(ranked[-1], ranked[0].unit_device, ranked[0].priority, float(ranked[0].score[0]))

    def _begin(self) -> None:
        """A longer round: one member from the best state, the others from the next starts."""
        self.step, self.laps_a_round = 0, min(MOST_LAPS, 2 * self.laps_a_round)
        best = self.best
        _move_to(self.members[0], best.unit_device, best.priority, best.score)
        for member in self.members[1:]:
            self.fresh = (self.fresh + 1) % len(self.starts)
            start = self.starts[self.fresh]
            _move_to(member, start.unit_device, start.priority, start.score)


def _move_to(member: Chunks, unit_device: IntArray, priority: FloatArray, score: float) -> None:
    member.unit_device[:] = unit_device
    member.priority[:] = priority
    member.score[0] = score
