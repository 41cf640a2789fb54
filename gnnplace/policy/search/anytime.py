"""Anytime search of the learned placer: decodes, then guided search in cycles from the best.

What the first choices leave of the budget is cut into cycles. A cycle starts from the best
placement so far, cools from one temperature to another, and has a habit of moving
(``guided.Habit``): cold with new orders, warm, or hot in a fixed order as annealing is. Each kind
that the budget affords gets a cycle; then the kind that found the best placement last goes on, and
every third cycle is one drawn at random. What a cycle has found is refined by passes. A problem of
which few simulations fit into the budget gets one cold cycle.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gnnplace.policy.decode.rollouts import Decoded, Rollouts
from gnnplace.policy.refine.passes import Passes
from gnnplace.policy.refine.refining_state import Placed
from gnnplace.policy.search.guided import Habit, State, back_to_best, search_kernel, start_state
from gnnplace.search.moves import Neighbourhood, neighbourhood, seed_kernel

COLDEST = 1e-4
FIRST_MOVES, FIRST_OPS = 10, 200_000  # moves, and ops in all, that tell how long a move takes
ROUND_SECONDS = 0.01
REFINING = 0.2  # of a cycle's time, for passes after it
ROUND_SHARE = 0.2  # a round takes at most so much of what is left, not to be late


@dataclass(frozen=True)
class Kind:
    """A kind of cycle.

    Attributes:
        hottest: temperature at its start, of the step time.
        proposed: share of proposals among moves of units.
        shifts: share of shifts in the order.
        loose: as in ``Habit``.
        least: moves of a unit that a cycle must afford.
    """

    hottest: float
    proposed: float
    shifts: float
    loose: float
    least: float


KINDS = (
    Kind(0.003, 0.6, 0.1, 0.1, 0.0),
    Kind(0.01, 0.5, 0.2, 0.1, 10.0),
    Kind(0.03, 0.3, 0.3, 0.0, 60.0),
)


def candidates_for(num_ops: int) -> int:
    """Random moves that a proposal is chosen from: more where a simulation costs more."""
    return int(np.clip(num_ops // 100, 4, 32))


class Anytime:
    """Searches one problem with one policy.

    Args:
        rollouts: the problem and the policy.
        rng: all randomness.
        passes: the passes of refinement, over the best placement of each cycle.
    """

    def __init__(self, rollouts: Rollouts, rng: np.random.Generator, passes: Passes) -> None:
        self.rollouts, self.rng, self.space = rollouts, rng, rollouts.space
        self.passes = passes
        self.weights = rollouts.policy.moves.weights()
        self.neighbourhood: Neighbourhood = neighbourhood(self.space)
        self.moves, self.seconds_a_move = 0, 1.0
        self.contexts = rollouts.unit_contexts

    def search(self, start: Decoded, deadline: float) -> tuple[State, str]:
        """The best state found from ``start`` until ``deadline``, and what was done."""
        s = start_state(self.space, start.unit_device, start.order)
        seed_kernel(int(self.rng.integers(2**31)))
        first = int(np.clip(FIRST_OPS // self.space.problem.num_ops, 1, FIRST_MOVES))
        begin = time.perf_counter()
        self._run(s, KINDS[0], COLDEST, first)
        self.seconds_a_move = max(1e-7, (time.perf_counter() - begin) / first)
        kinds = self._kinds((deadline - begin) / self.seconds_a_move)
        length = (deadline - begin) / (1 if len(kinds) == 1 else 2 * len(kinds) + 2)
        last, cycle = kinds[0], 0
        while time.perf_counter() < deadline:
            kind = self._next(kinds, cycle, last)
            if self._improved(s, kind, length, deadline):
                last = kind
            cycle += 1
        return s, f"{self.moves} moves, {cycle} cycles"

    def _next(self, kinds: list[Kind], cycle: int, last: Kind) -> Kind:
        """Each kind once; then the one that found something last, every third one drawn."""
        if cycle < len(kinds):
            return kinds[cycle]
        return kinds[int(self.rng.integers(len(kinds)))] if cycle % 3 == 2 else last

    def _improved(self, state: State, kind: Kind, length: float, deadline: float) -> bool:
        """One cycle of so many seconds, passes after it, back to the best; whether it is better."""
        before = state.score[1]
        self._cycle(state, kind, min(deadline, time.perf_counter() + length))
        better = bool(state.score[1] < before)
        if better:
            self._refine(state, min(deadline, time.perf_counter() + REFINING * length))
        back_to_best(self.space, state)
        return better

    def _refine(self, state: State, deadline: float) -> None:
        """Passes over the best state; none begins after the deadline."""
        best = Placed(state.best_device.copy(), state.best_order.copy(), state.score[1:].copy())
        best = self.passes.improved(best, deadline, 1)
        if best.score[0] < state.score[1]:
            state.best_device[:], state.best_order[:], state.score[1] = (
                best.device,
                best.order,
                best.score[0],
            )

    def _kinds(self, moves: float) -> list[Kind]:
        """The kinds of cycles that ``moves`` moves afford."""
        each = moves / (2 * len(KINDS) + 2) / self.space.problem.num_units
        return [kind for kind in KINDS if each >= kind.least] or [KINDS[0]]

    def _cycle(self, state: State, kind: Kind, deadline: float) -> None:
        begin = time.perf_counter()
        while (now := time.perf_counter()) < deadline:
            share = (now - begin) / max(deadline - begin, 1e-9)
            wanted = min(ROUND_SECONDS, (deadline - now) * ROUND_SHARE) / self.seconds_a_move
            count = int(np.clip(wanted, 1, 10_000))
            self._run(state, kind, kind.hottest * (COLDEST / kind.hottest) ** share, count)
            self.seconds_a_move = max(1e-7, (time.perf_counter() - now) / count)

    def _run(self, state: State, kind: Kind, temperature: float, moves: int) -> None:
        habit = Habit(
            candidates_for(self.space.problem.num_ops), kind.proposed, kind.shifts, kind.loose
        )
        search_kernel(
            self.space.compiled,
            self.space.reversed,
            self.neighbourhood,
            self.weights,
            self.contexts,
            habit,
            state,
            temperature * float(state.score[1]),
            moves,
        )
        self.moves += moves
