"""``Flips``: learning from what each decision of a finished placement is worth by itself.

Formulation: take a finished placement y of a problem, one of the policy's own, and let the decoder
walk along it. For the unit u of each decision and each device d,
simulate y with u on d and all else as it is (the order of ops may change): the regret is
r(u, d) = log c(y with u on d) - min over d of the same, at most ``most``. The loss of a decision is
the expected regret, as in ``CostToGo``. These are difference rewards (Wolpert and Tumer, 2002) for
a decoder.

Against completing the placement after each candidate (``CostToGo``) a label costs one simulation
and a list schedule, not a decode, so that every decision of a placement gets labels for all
devices; and nothing that follows adds noise. The price is that later decisions do not answer.
Against imitation: a choice that does not matter has no weight, however the search made it.
Cost: units * devices simulations and list schedules a placement.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnnplace.placers.annealing import neighbourhood
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.search.guided import State, flip_scores, start_state
from gnnplace.train.data import Sample
from gnnplace.train.decisions import DecisionModule, Lesson, alike, expected_regret, take
from gnnplace.train.placements import a_decode

FloatArray = NDArray[np.float64]


class Flips(DecisionModule):
    """Learning from flips.

    Args:
        flips: units of a placement that are flipped.
        most: greatest regret, in log step time.
        sharpness: scores are multiplied by this.
        shared: arguments of ``PolicyModule``.
    """

    def __init__(
        self,
        flips: int = 100,
        most: float = 0.1,
        sharpness: float = 2.0,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.flips, self.most, self.sharpness = flips, most, sharpness

    def decision_loss(self, scores: Tensor, values: Tensor) -> Tensor:
        """Expected regret in percent; ``values`` are regrets, nan where not tried."""
        return expected_regret(scores, values, self.sharpness)

    def lessons(self, batch: list[Sample]) -> list[Lesson]:
        """A few lessons for each problem."""
        return [lesson for sample in batch for lesson in self._of_problem(sample)]

    def _of_problem(self, sample: Sample) -> list[Lesson]:
        if sample.space.problem.num_devices < 2:
            return []
        rollouts, rng = self.rollouts(sample), self.rng(sample)
        start = a_decode(rollouts, rng)
        if start.aim.limit < 2:
            return []
        state = start_state(rollouts.space, start.unit_device, start.order)
        units = rng.permutation(rollouts.space.problem.num_units)[: self.flips].astype(np.int32)
        regret = self._regret(rollouts, state, units)
        return [self._under(rollouts, start.aim, state, units, regret)]

    def _regret(self, rollouts: Rollouts, state: State, units: NDArray[np.int32]) -> FloatArray:
        """Log score of each unit on each device above the best of them, nan where not tried."""
        space, most = rollouts.space, float(state.score[0]) * np.exp(2 * self.most)
        costs = flip_scores(space.compiled, neighbourhood(space), state, units, most)
        costs[~space.problem.unit_allowed[units]] = np.nan
        regret = np.log(costs / np.nanmin(costs, axis=1, keepdims=True))
        return np.minimum(regret, self.most, out=regret, where=~np.isnan(regret))

    def _under(
        self,
        rollouts: Rollouts,
        aim: Aim,
        state: State,
        units: NDArray[np.int32],
        regret: FloatArray,
    ) -> Lesson:
        """What the decoder sees along the placement, where a unit was flipped."""
        seen = rollouts.watch(aim, state.unit_device)
        row = np.full(rollouts.space.problem.num_units, -1)
        row[units] = np.arange(len(units))
        open_ = (row[seen.unit] >= 0) & (seen.allowed.sum(axis=1) > 1)
        open_ &= seen.allowed[np.arange(len(seen.unit)), seen.chosen]
        picked = np.flatnonzero(open_)
        seen = take(seen, picked)
        values = alike_regret(regret[row[seen.unit]], alike(seen))
        return Lesson(rollouts, aim, seen, values.astype(np.float32))


def alike_regret(regret: FloatArray, same: NDArray[np.int64]) -> FloatArray:
    """The least regret of the devices that look the same to the decoder as each device. [S, D]

    Of empty devices of one kind any may take the first unit, though the placement has one.
    """
    result = regret.copy()
    for row, groups in zip(result, same, strict=True):
        for first in np.unique(groups[groups >= 0]):
            members = groups == first
            if np.isfinite(row[members]).any():
                row[members] = np.nanmin(row[members])
    return result
