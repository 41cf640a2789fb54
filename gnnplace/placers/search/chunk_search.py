"""Local search on a coarse problem. A move changes the devices of chunks of units (``chunks``).

**A move.** The state is a device for each unit and a priority for each op. The devices after a move
are list-scheduled by the state's priority, and the schedule is justified once
(``list_scheduling.justify``). The seconds of the justified schedule are the move's value, and the
distances of the justification are the new priority.

Annealing accepts a move up to a threshold (Metropolis, with the threshold drawn before the move is
priced). Two tests save time:

* a move that gives some device more work than the threshold is rejected without a schedule;
* a schedule that is ``HOPELESS`` times as long as the threshold is not justified. This loses one in
  thirty of the moves that are worth taking. Half of the others cost a third or less, because a list
  schedule stops as soon as some device cannot finish its remaining work in time.

Schedules leave out edges that others imply (``lean``). If memory is tight, a move that would be
accepted is also simulated, with the penalty of ``SearchSpace.score``.

**Laps and rounds.** Several members of a population anneal in turn, and "go with the winners"
(Aldous and Vazirani, 1994): after each lap the worst member continues from the state of the best. A
round cools down once; the next round has twice as many laps. In a new round one member begins at
the best state, the others at the next of the given starts. Rounds do not depend on the budget and
the best state is kept, so that a larger budget is never worse.

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
    find_busiest_seconds,
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
FEWEST_MOVES = 8  # of a lap
FIRST_LAPS = 1  # laps of each member in the first round
MOST_LAPS = 64  # laps of each member in a round
MEMBERS = 3  # members of the population
HOTTEST = 0.01  # temperature at the beginning of a round, over the step time
COLDEST = 0.0003  # temperature at its end, over the step time
NOISE = 0.12  # share of moves that change devices and disturb the priority too
MOST_SPREAD = 0.3  # of the disturbance, over an op's priority
HOPELESS = 1.04  # a schedule so many times as long as the threshold is not justified
ROUNDING = 1e-9  # relative error of sums in another order


@kernel
def schedule_and_justify(
    compiled: Compiled,
    reversed_compiled: Compiled,
    device: IntArray,
    priority: FloatArray,
    finish: FloatArray,
    far: FloatArray,
    limit: float,
) -> tuple[float, IntArray]:
    """Make a list schedule and justify it once. Return its seconds, inf if hopeless, and its order.

    Args:
        compiled: The compiled problem, without consumptions that others imply.
        reversed_compiled: The same problem with all edges reversed.
        device: Device of each op. [n]
        priority: Priority of each op. [n]
        finish: Output: seconds at which each op finishes. [n]
        far: Output: seconds from each op's start to the end, which are the priority of the returned
            order. [n]
        limit: Seconds. The schedule is hopeless if it takes ``HOPELESS`` times as long before the
            justification, or takes longer after it.
    """
    hopeless = HOPELESS * limit
    # List schedules stop at a limit; rounding must not stop one that takes exactly as long.
    stop_at = hopeless * (1.0 + ROUNDING)
    order = time_list_schedule(compiled, device, priority, finish, stop_at)
    if greatest(finish) > hopeless:
        return np.inf, order
    time_list_schedule(reversed_compiled, device, finish, far, stop_at)
    if greatest(far) > hopeless:
        return np.inf, order
    order = time_list_schedule(compiled, device, far, finish, limit * (1.0 + ROUNDING))
    return greatest(finish), order


class ChunkProblem(NamedTuple):
    """The coarse problem that chunks are searched on.

    Attributes:
        compiled: The compiled problem, with all consumptions.
        lean: The problem without consumptions that others imply.
        lean_reversed: ``lean`` with all edges reversed.
        neighbourhood: Allowed devices, memory limits and their penalty, for ``energy``.
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
    """Try ``moves`` moves while the temperature falls geometrically.

    Args:
        problem: The coarse problem.
        chunks: The state of the search, and the best state; changed in place.
        first: Temperature of the first move, in seconds.
        last: Temperature after the last move, in seconds.
        moves: The number of moves to try.
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
        # 1. Draw the threshold, and a move; useful kinds of moves are drawn more often.
        temperature = first * (last / first) ** (k / moves)
        threshold = draw_threshold(chunks.score[0], temperature)
        copy_to(tried, chunks.unit_device)
        kind = choose_kind(chunks)
        change(chunks, tried, kind)
        noisy = kind == ORDER or np.random.random() < NOISE
        # 2. A move that changes nothing, or gives a device too much work, needs no schedule.
        if not noisy and same(tried, chunks.unit_device):
            continue
        if find_busiest_seconds(chunks.work, tried, load) > threshold:
            continue
        # 3. Schedule by the state's priority, which noise may disturb, and justify. Simulate a move
        # that may become the best, or that may exceed the memory.
        copy_to(priority, chunks.priority)
        if noisy:
            spread = MOST_SPREAD * np.random.random() ** 2
            for op in range(n):
                priority[op] *= 1.0 + spread * (np.random.random() - 0.5)
        for op in range(n):
            device[op] = tried[compiled.unit_of[op]]
        seconds, order = schedule_and_justify(
            lean, lean_reversed, device, priority, finish, far, threshold
        )
        if seconds <= threshold and (
            neighbourhood.memory_matters or seconds < chunks.best_score[0]
        ):
            seconds = energy(compiled, neighbourhood, device, order, threshold)
        # 4. Note how useful the kind of move was. If it is accepted, keep it, and the best state.
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
    """A state that a search starts from, or its best state.

    Attributes:
        score: Predicted seconds, with the penalty for memory.
        unit_device: Device of each unit. [U]
        priority: Priority of each op. [n]
        order: The order of all ops. [n]
    """

    score: float
    unit_device: IntArray
    priority: FloatArray
    order: IntArray


class ChunkSearch:
    """A search of one coarse problem, lap by lap and round by round.

    Args:
        space: The search space of the coarse problem.
        narrow: The coarse problem of narrow groups.
        starts: States to start from, the best first; at least one.
        seed: The seed of all randomness.
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
        self.moves_a_lap = max(FEWEST_MOVES, LAP_OPS // space.problem.num_ops)
        self.laps_a_round = FIRST_LAPS
        self.step = 0  # laps of all members in this round
        self.lap = 0  # laps of all members in all rounds
        self.fresh = 0  # the start that a member began from last
        best = starts[0]
        # A kind of move that can do nothing on this graph is never drawn.
        prior = np.array(PRIOR)
        if len(narrow.loose) == 0:
            prior[ALONE] = 0.0
        if len(narrow.line) == 0:
            prior[:] = np.arange(len(prior)) == ALONE
        # All members write to the same best state, and learn together which moves are useful.
        first_member = Chunks(
            line=narrow.line,
            loose=narrow.loose,
            work=space.work,
            unit_device=best.unit_device.copy(),
            priority=best.priority.copy(),
            score=np.array([best.score]),
            best_unit_device=best.unit_device.copy(),
            best_priority=best.priority.copy(),
            best_order=best.order.copy(),
            best_score=np.array([best.score]),
            prior=prior / prior.sum(),
            useful=np.full(len(PRIOR), HOPED),
        )
        self.members = [first_member]
        for start in starts[1:MEMBERS]:
            member = first_member._replace(
                unit_device=start.unit_device.copy(),
                priority=start.priority.copy(),
                score=np.array([start.score]),
            )
            self.members.append(member)

    @property
    def ops(self) -> int:
        """Return the cost of the search so far, in moves times ops."""
        return self.lap * self.moves_a_lap * self.space.problem.num_ops

    @property
    def best(self) -> Start:
        """Return a copy of the best state so far."""
        member = self.members[0]
        return Start(
            score=float(member.best_score[0]),
            unit_device=member.best_unit_device.copy(),
            priority=member.best_priority.copy(),
            order=member.best_order.copy(),
        )

    def run_lap(self) -> None:
        """Run the next lap: some moves of one member of the population."""
        if self.step == self.laps_a_round * len(self.members):
            self._begin_round()
        generation, index = divmod(self.step, len(self.members))
        if index == 0 and generation > 0:
            self._replace_worst()
        self._run_moves(self.members[index], generation / self.laps_a_round)
        self.step += 1
        self.lap += 1

    def _run_moves(self, member: Chunks, progress: float) -> None:
        """Run a lap's moves of one member.

        Args:
            member: The member; changed in place.
            progress: The share of the round that has passed, which sets the temperature.
        """
        fall = COLDEST / HOTTEST
        first = HOTTEST * fall**progress * float(member.best_score[0])
        lean, lean_reversed = self.space.lean
        problem = ChunkProblem(
            compiled=self.space.compiled,
            lean=lean,
            lean_reversed=lean_reversed,
            neighbourhood=self.neighbourhood,
        )
        seed_kernel(int(self.seeds.integers(2**31)))
        chunk_kernel(
            problem,
            member,
            first,
            first * fall ** (1 / self.laps_a_round),
            self.moves_a_lap,
        )
        count_steps(self.moves_a_lap)

    def _replace_worst(self) -> None:
        """Have the worst member continue from the state of the best one."""
        ranked = sorted(self.members, key=lambda member: float(member.score[0]))
        best, worst = ranked[0], ranked[-1]
        _move_to(worst, best.unit_device, best.priority, float(best.score[0]))

    def _begin_round(self) -> None:
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
    """Move a member to another state, in place."""
    member.unit_device[:] = unit_device
    member.priority[:] = priority
    member.score[0] = score
