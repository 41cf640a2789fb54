"""Anytime search of the learned placer: decodes, then local search in cycles from the best.

A cycle starts from the best placement so far, cools from one temperature to another, and has a
habit of moving (``moves.Habit``): cold with new orders, warm, or hot in a fixed order as annealing
is. Cycles grow longer and longer, whatever the budget is, so that a search which is cut off later
is never worse. Warm and hot ones are worth it as soon as a cycle has some moves for every unit.
Where there are few units a cycle soon has a thousand moves for each; then some melt everything and
give every move an order of its own, since the best may be far from all that is nearly as good.
Each kind gets a cycle; then the kind that found the best placement last goes on, and every third
cycle is one drawn at random. What a long cycle has found is refined by passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.search.clock import expired
from gnnplace.placers.search.moves import Neighbourhood, neighbourhood, seed_kernel
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.refine.refining_state import Placed
from gnnplace.policy.search.moves import Habit, back_to_best, search_kernel, start_state

COLDEST = 1e-4
FEWEST_MOVES, FIRST_OPS = 50, 500_000  # moves of the first cycle, and moves times ops
GROWTH = 1.3  # of a cycle's length from one to the next
CALL_OPS = 20_000  # moves times ops between two looks at the clock: some 5 ms
REFINED = 200  # moves of a cycle from which on passes come after it


@dataclass(frozen=True)
class Kind:
    """A kind of cycle.

    Attributes:
        hottest: temperature at its start, of the step time.
        shifts: share of shifts in the order.
        loose: how far above its step time a move still gets an order of its own.
        least: moves for each unit that a cycle must have.
    """

    hottest: float
    shifts: float
    loose: float
    least: float


KINDS = (
    Kind(0.003, 0.1, 0.1, 0.0),
    Kind(0.01, 0.2, 0.1, 10.0),
    Kind(0.03, 0.3, 0.0, 60.0),
    Kind(0.2, 0.1, 1.0, 1000.0),
)


class Anytime:
    """Searches one problem with one policy, from a start or from what it is offered.

    Attributes:
        state: where the search is, and the best so far.
        moves: the number of moves tried so far.
        cycles: the number of cycles begun so far.

    Args:
        rollouts: the problem and the policy.
        rng: the source of all randomness.
        passes: the passes of refinement, over the best placement of each cycle.
        start: devices of units and an order of ops to start from. [U], [n]
    """

    def __init__(
        self,
        rollouts: Rollouts,
        rng: np.random.Generator,
        passes: RefiningPasses,
        start: tuple[IntArray, IntArray],
    ) -> None:
        self.rollouts, self.rng, self.space = rollouts, rng, rollouts.space
        self.passes = passes
        self.neighbourhood: Neighbourhood = neighbourhood(self.space)
        self.state = start_state(self.space, *start)
        self.moves, self.cycles, self.last = 0, 0, KINDS[0]
        n = self.space.problem.num_ops
        self.length = max(FEWEST_MOVES, FIRST_OPS / n)
        self.per_call = int(np.clip(CALL_OPS // n, 1, 1_000))

    def search(self, deadline: float) -> str:
        """Cycles until the deadline; what was done."""
        while not expired(deadline):
            self.cycle(deadline)
        return f"{self.moves} moves, {self.cycles} cycles"

    @property
    def ops(self) -> int:
        """Moves times ops: what the search has cost."""
        return self.moves * self.space.problem.num_ops

    def offer(self, device: IntArray, order: IntArray, score: float) -> None:
        """Takes a placement that is better than the best state."""
        if score < self.state.score[1]:
            self.state.best_device[:], self.state.best_order[:] = device, order
            self.state.score[1] = score
            back_to_best(self.space, self.state)

    def cycle(self, deadline: float) -> None:
        """The next cycle, longer than the one before; passes after it; back to the best."""
        kind, before = self._next(), self.state.score[1]
        seed_kernel(int(self.rng.integers(2**31)))
        self._run(kind, round(self.length), deadline)
        if self.state.score[1] < before:
            self.last = kind
            if self.length >= REFINED:
                self._refine(deadline)
        back_to_best(self.space, self.state)
        self.cycles += 1
        self.length *= GROWTH

    def _next(self) -> Kind:
        """Kinds in turn at first; then the one that found something last, or one in three drawn."""
        kinds = self._kinds()
        if self.cycles < len(kinds):
            return kinds[self.cycles]
        if self.cycles % 3 == 2 or self.last not in kinds:
            return kinds[int(self.rng.integers(len(kinds)))]
        return self.last

    def _kinds(self) -> list[Kind]:
        """The kinds of cycles that are worth it at the present length."""
        each = self.length / self.space.problem.num_units
        return [kind for kind in KINDS if each >= kind.least]

    def _refine(self, deadline: float) -> None:
        """Passes over the best state; none begins after the deadline."""
        state = self.state
        best = Placed(state.best_device.copy(), state.best_order.copy(), state.score[1:].copy())
        best = self.passes.improved(best, deadline, 1)
        self.offer(best.device, best.order, float(best.score[0]))

    def _run(self, kind: Kind, moves: int, deadline: float) -> None:
        """So many moves while the temperature falls, cut off at the deadline."""
        habit = Habit(kind.shifts, kind.loose)
        for done in range(0, moves, self.per_call):
            if expired(deadline):
                break
            temperature = kind.hottest * (COLDEST / kind.hottest) ** (done / moves)
            count = min(self.per_call, moves - done)
            search_kernel(
                self.space.compiled,
                self.space.reversed,
                self.neighbourhood,
                habit,
                self.state,
                temperature * float(self.state.score[1]),
                count,
            )
            self.moves += count
