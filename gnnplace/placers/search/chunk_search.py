"""Local search on a coarse problem whose moves are of chunks (``chunks``).

Formulation: the devices after a move are list-scheduled by the state's priority, and the schedule
is justified once (``list_scheduling.justify``). Its seconds are the move's value, and the distances
of the justification are the new priority. A move is rejected without a schedule if it gives a
device more work than the threshold, and without justification if its schedule is ``HOPELESS`` times
as long as the threshold. The second test loses one in thirty of the moves that are worth taking,
and makes half of the others cost a third or less, because a list schedule stops as soon as some
device cannot finish its remaining work in time. Schedules leave out edges that others imply
(``lean``). If memory is tight, a move that would be accepted is also simulated, with the penalty of
``SearchSpace.score``.

Several members anneal in turn (Metropolis, the threshold drawn first) by the rule "go with the
winners" (Aldous and Vazirani, 1994): after each lap the worst member continues from the state of
the best. A round cools down once; the next round is twice as long. In a new round one member begins
at the best state, the others at the next of the given starts. Rounds do not depend on the budget
and the best state is kept, so that a larger budget is never worse.
Complexity: at most three list schedules a move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import (
    copy_to,
    empty_floats,
    empty_ints,
    greatest,
    kernel,
    zero_floats,
)
from gnnplace.placers.search.chunks import (
    ALONE,
    FORGOTTEN,
    HOPED,
    ORDER,
    PRIOR,
    Chunks,
    change,
    choose_kind,
    most_work,
    same,
)
from gnnplace.placers.search.coarse_problem import NarrowProblem
from gnnplace.placers.search.moves import (
    Neighbourhood,
    draw_threshold,
    energy,
    neighbourhood,
    seed_kernel,
)
from gnnplace.placers.search.space import SearchSpace
from gnnplace.simulation import Compiled, count_steps, time_list_schedule

LAP_OPS = 300_000  # moves of a lap times ops: some 30 to 50 ms
FIRST_LAPS, MOST_LAPS = 1, 64  # laps of each member in the first round, and in any
MEMBERS = 3
# Temperatures at the beginning and end of a round, relative to the step time.
HOTTEST, COLDEST = (0.01, 0.0003)
NOISE = 0.12  # share of other moves that disturb the priority as well
HOPELESS = 1.04  # a schedule so much longer than wanted is not justified
ROUNDING = 1e-9


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
        compiled: the compiled problem, without consumptions that others imply.
        reversed_compiled: the same with all its edges turned round.
        device: device of each op. [n]
        priority: Priority of each op. [n]
        finish: Output: seconds at which each op finishes. [n]
        far: Output: seconds from each op's start to the end, the priority of the order. [n]
        limit: seconds; a schedule that is ``HOPELESS`` times as long is not justified, and a
            justified one that shows to be longer is hopeless as well.
    """
    hopeless = HOPELESS * limit
    surely = hopeless * (1.0 + ROUNDING)
    order = time_list_schedule(compiled, device, priority, finish, surely)
    if greatest(finish) > hopeless:
        return np.inf, order
    time_list_schedule(reversed_compiled, device, finish, far, surely)
    if greatest(far) > hopeless:
        return np.inf, order
    order = time_list_schedule(compiled, device, far, finish, limit * (1.0 + ROUNDING))
    return greatest(finish), order


class ChunkProblem(NamedTuple):
    """The coarse problem that chunks are searched on.

    Attributes:
        compiled: The compiled problem, all of it.
        lean: The problem without consumptions that others imply.
        lean_reversed: ``lean`` with all its edges turned round.
        neighbourhood: What an energy takes.
    """

    compiled: Compiled
    lean: Compiled
    lean_reversed: Compiled
    neighbourhood: Neighbourhood


@kernel
def chunk_kernel(
    problem: ChunkProblem,
    chunks: Chunks,
    first: float,
    last: float,
    moves: int,
) -> None:
    """Make ``moves`` moves while the temperature falls from ``first`` to ``last``, in seconds.

    Args:
        problem: the coarse problem.
        chunks: where the search is.
        first: temperature of the first move.
        last: The index of the last chunk.
        moves: how many to try.
    """
    compiled, lean, lean_reversed, neighbourhood = problem
    n = len(compiled.state)
    device = empty_ints(n)
    tried = empty_ints(len(chunks.unit_device))
    finish = empty_floats(n)
    far = empty_floats(n)
    priority = empty_floats(n)
    load = zero_floats(chunks.work.shape[1])
    for k in range(moves):
        # 1. A move, by the use of its kind so far; and the most seconds at which it is accepted.
        temperature = first * (last / first) ** (k / moves)
        threshold = draw_threshold(chunks.score[0], temperature)
        copy_to(tried, chunks.unit_device)
        kind = choose_kind(chunks)
        change(chunks, tried, kind)
        noisy = kind == ORDER or np.random.random() < NOISE
        # 2. What changes nothing, or has too much work on one device, needs no schedule.
        if not noisy and same(tried, chunks.unit_device):
            continue
        if most_work(chunks.work, tried, load) > threshold:
            continue
        # 3. A schedule by the state's priorities, disturbed or not, justified from both ends; what
        # might be the best, or may not fit, is simulated.
        copy_to(priority, chunks.priority)
        if noisy:
            spread = 0.3 * np.random.random() ** 2
            for op in range(n):
                priority[op] *= 1.0 + spread * (np.random.random() - 0.5)
        for op in range(n):
            device[op] = tried[compiled.unit_of[op]]
        seconds, order = justified(
            lean, lean_reversed, device, priority, finish, far, threshold
        )
        if seconds <= threshold and (
            neighbourhood.memory_matters or seconds < chunks.best_score[0]
        ):
            seconds = energy(compiled, neighbourhood, device, order, threshold)
        # 4. What the kind of move was good for; where it is accepted, the state and the best one.
        better = seconds < chunks.score[0] * (1.0 - ROUNDING)
        chunks.useful[kind] += FORGOTTEN * (
            (1.0 if better else 0.0) - chunks.useful[kind]
        )
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
        priority: Priority of each op. [n]
        order: The order of all ops. [n]
    """

    score: float
    unit_device: IntArray
    priority: FloatArray
    order: IntArray


class ChunkSearch:
    """A search of one coarse problem, round by round.

    Args:
        space: the space of the coarse problem.
        narrow: the coarse problem of narrow groups.
        starts: states to start from, the best first; at least one.
        seed: the seed of all its randomness.
    """

    def __init__(
        self,
        space: SearchSpace,
        narrow: NarrowProblem,
        starts: Sequence[Start],
        seed: int,
    ) -> None:
        self.space = space
        self.starts = starts
        self.neighbourhood = neighbourhood(space)
        self.seeds = np.random.default_rng(seed)
        self.moves_a_lap = max(8, LAP_OPS // space.problem.num_ops)
        self.laps_a_round = FIRST_LAPS
        self.step = 0
        self.lap = 0
        self.fresh = 0
        best = starts[0]
        # A kind of move that the graph leaves nothing to do for is never drawn.
        prior = np.array(PRIOR)
        if len(narrow.loose) == 0:
            prior[ALONE] = 0.0
        if len(narrow.line) == 0:
            prior[:] = np.arange(len(prior)) == ALONE
        # All members write to the same best state, and learn together which moves are useful.
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
    def ops(self) -> int:
        """Return the cost of the search so far: moves times ops."""
        return self.lap * self.moves_a_lap * self.space.problem.num_ops

    @property
    def best(self) -> Start:
        """Return the best state so far."""
        member = self.members[0]
        return Start(
            score=float(member.best_score[0]),
            unit_device=member.best_unit_device.copy(),
            priority=member.best_priority.copy(),
            order=member.best_order.copy(),
        )

    def run_lap(self) -> None:
        """Run the next lap: some moves of one member of the population."""
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
        """Make moves of one member, so far into the round."""
        fall = COLDEST / HOTTEST
        hot = HOTTEST * fall**share * float(member.best_score[0])
        seed_kernel(int(self.seeds.integers(2**31)))
        chunk_kernel(
            ChunkProblem(self.space.compiled, *self.space.lean, self.neighbourhood),
            member,
            hot,
            hot * fall ** (1 / self.laps_a_round),
            self.moves_a_lap,
        )
        count_steps(self.moves_a_lap)

    def _select(self) -> None:
        """Have the worst member go on from where the best one is."""
        ranked = sorted(self.members, key=lambda member: float(member.score[0]))
        _move_to(
            ranked[-1],
            ranked[0].unit_device,
            ranked[0].priority,
            float(ranked[0].score[0]),
        )

    def _begin(self) -> None:
        """Begin a longer round: one member from the best state, the others from the next starts."""
        self.step = 0
        self.laps_a_round = min(MOST_LAPS, 2 * self.laps_a_round)
        best = self.best
        _move_to(self.members[0], best.unit_device, best.priority, best.score)
        for member in self.members[1:]:
            self.fresh = (self.fresh + 1) % len(self.starts)
            start = self.starts[self.fresh]
            _move_to(member, start.unit_device, start.priority, start.score)


def _move_to(
    member: Chunks, unit_device: IntArray, priority: FloatArray, score: float
) -> None:
    member.unit_device[:] = unit_device
    member.priority[:] = priority
    member.score[0] = score
