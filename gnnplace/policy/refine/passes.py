"""Passes of refinement over decoded placements: the second half of the policy's first choice.

The best few decodes go through one round of passes each, the best of them through more. A round
begins with bold passes, which make only moves with a large expected gain; then come meek passes,
which make every move with an expected gain. Forward and backward passes alternate; a pass that does
not make the step faster is undone. Rounds end when one changes nothing. Many starts go through
successive halving: a meek pass in each direction for the best sixteen, a round for the best four of
these, all other rounds for the best.
Complexity: two to five dozen passes, each near-linear in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product

import numpy as np

from gnnplace.placers import neighbourhood, read_clock
from gnnplace.policy.decode.rollouts import SCORE, Decoded, Rollouts, weight_array
from gnnplace.policy.refine.refining import one_pass
from gnnplace.policy.refine.refining_state import (
    Ground,
    Placed,
    Previous,
    read_previous,
    refining_units,
)
from gnnplace.simulation import count_steps

STARTS = 3
# The number of starts where memory is tight and results are harder to predict.
TIGHT_STARTS = 6
STAYS = (5.0, 2.0, 0.5)  # percent that a device must be better
ROUNDS = 3
# Of halving, with a cautious pass each way; with a round.
MANY_STARTS, FEW_STARTS = 16, 4


def starts(ranked: list[Decoded], most: int) -> list[Decoded]:
    """Return the best ``most`` that differ; where some do not fit the memory, the best of those
    too.
    """
    fitting: list[Decoded] = []
    too_large: list[Decoded] = []
    scores: set[float] = set()
    for decoded in ranked:
        if decoded.score not in scores:
            scores.add(decoded.score)
            (fitting if decoded.fits else too_large).append(decoded)
    num_fitting = min(len(fitting), most - bool(too_large))
    return fitting[:num_fitting] + too_large[: most - num_fitting]


class RefiningPasses:
    """Passes that refine placements of one problem.

    Args:
        rollouts: the problem and the policy.
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts
        self.space = rollouts.space
        num_units = self.space.problem.num_units
        self.open = np.full(num_units, -1, np.int32)

    @cached_property
    def ground(self) -> Ground:
        """Return what passes need to know of the problem. It is computed at the first call."""
        return Ground(
            c=self.space.compiled,
            r=self.space.reversed,
            h=neighbourhood(self.space),
            units=refining_units(self.rollouts.graph),
            weights=weight_array(self.rollouts.policy.refiner),
        )

    def best(self, ranked: list[Decoded], deadline: float = np.inf) -> Decoded:
        """Run a round of passes over each of a few placements, more over the best of them.

        None begins after the deadline.
        """
        candidates = ranked[:1]
        for decoded in starts(
            ranked, TIGHT_STARTS if self.space.memory_matters else STARTS
        ):
            candidates.append(self.refine_rounds(decoded, deadline, 1))
        best = min(candidates, key=SCORE)
        return self.refine_rounds(best, deadline, ROUNDS - 1)

    def best_by_halving(
        self, ranked: list[Decoded], deadline: float = np.inf
    ) -> Decoded:
        """Return the best of many starts after passes: some over many, more over few of them.

        No pass begins after the deadline.

        Args:
            ranked: Starts, the best first.
            deadline: The time to be back.
        """
        tried = []
        for decoded in starts(ranked, MANY_STARTS):
            tried.append(self.refine_rounds(decoded, deadline, 1, STAYS[-1:]))
        tried.sort(key=SCORE)
        for decoded in starts(tried, FEW_STARTS):
            tried.append(self.refine_rounds(decoded, deadline, 1))
        best = min(tried, key=SCORE)
        return self.refine_rounds(best, deadline, ROUNDS - 1)

    def refine_rounds(
        self,
        decoded: Decoded,
        deadline: float = np.inf,
        rounds: int = ROUNDS,
        stays: Sequence[float] = STAYS,
    ) -> Decoded:
        """Return a placement after rounds of passes, at least as good.

        Args:
            decoded: The placement.
            deadline: No pass begins after it.
            rounds: Rounds of passes at most.
            stays: For each pass of a round, each way, the percent that a device must be better.
        """
        if read_clock() >= deadline:
            return decoded
        device = self.space.spread(decoded.unit_device)
        placed = Placed(device, decoded.order.copy(), np.array([decoded.score]))
        placed = self.improved(placed, deadline, rounds, stays)
        score = float(placed.score[0])
        units = self.space.find_unit_devices(placed.device)
        return self.rollouts.decode_once(score, units, placed.order, decoded.aim)

    def improved(
        self,
        placed: Placed,
        deadline: float = np.inf,
        rounds: int = ROUNDS,
        stays: Sequence[float] = STAYS,
    ) -> Placed:
        """Refine a placement that need not be a decode; one that cannot run stays as it is."""
        if not np.isfinite(placed.score[0]):
            return placed
        read: dict[int, Previous] = {}  # what is known of ``placed``, by direction
        for _ in range(rounds):
            score_before = float(placed.score[0])
            for stay, back in product(stays, (0, 1)):
                if read_clock() >= deadline:
                    return placed
                if back not in read:
                    read[back] = read_previous(self.ground, placed, back)
                tried = self.tried(placed, read[back], stay)
                if tried is not placed:
                    placed = tried
                    read = {}
            if placed.score[0] >= score_before:
                break
        return placed

    def tried(self, placed: Placed, previous: Previous, stay: float) -> Placed:
        """Return the placement after a pass if that is better, else as it is."""
        trial = Placed(
            device=placed.device.copy(),
            order=placed.order.copy(),
            score=placed.score.copy(),
        )
        one_pass(
            ground=self.ground,
            previous=previous,
            trial=trial,
            stay=stay,
            noise=0.0,
            forced=self.open,
        )
        count_steps()
        if trial.score[0] < placed.score[0]:
            return trial
        return placed
