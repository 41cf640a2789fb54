"""``MeasuredReinforce``: fine-tunes the GNN for one model, by step times that were measured.

The same losses as ``Reinforce``; what draws take is asked of an objective that runs them. Nothing
is simulated, so the network learns what the machine really does, from few draws. A placement that
failed counts as ``FAILED`` times the slowest that ran. Placements that the objective's store knows
are not run again, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.measurements.objective import StepObjective
from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.problem.placement import Placement
from gnnplace.simulation import finished_placement
from gnnplace.train.data_module import ProblemSample
from gnnplace.train.learner import save_whole
from gnnplace.train.reinforce import Reinforce

FAILED = 3.0


class MeasuredReinforce(Reinforce):
    """The GNN in training on one model; the data module is ``Rounds``.

    Args:
        objective: measures placements, and has the problem.
        samples: placements drawn a step, each of which is measured; at least 2.
        kept: of these, how many the policy gradient learns from.
        given: arguments of ``Reinforce``; no label is moved, since that would be simulated.

    Raises:
        InputError: a number is too small.
    """

    def __init__(
        self, objective: StepObjective, samples: int = 6, kept: int = 6, **given: Any
    ) -> None:
        super().__init__(samples=samples, kept=kept, shared=0, moves=0, **given)
        self.objective = objective
        self.found: tuple[float, Placement] | None = None

    @cached_property
    def sample(self) -> ProblemSample:
        """The objective's problem."""
        return ProblemSample(SearchSpace(self.objective.problem), 0)

    def batch_loss(self, batch: list[Any]) -> Tensor | None:
        """The loss of one step's draws; ``batch`` is of no meaning."""
        return super().batch_loss([self.sample])

    def seconds(self, episodes: Episodes, drawn: IntArray) -> FloatArray:
        """Measured seconds of a step of each placement; the greedy one is among them."""
        placements = [_placement(episodes, unit_device) for unit_device in drawn]
        found = [measured.seconds for measured in self.objective.measure(placements)]
        ran = [(s, p) for s, p in zip(found, placements, strict=True) if s is not None]
        if not ran:
            return np.ones(len(drawn))
        best = min(ran, key=lambda pair: pair[0])
        self.found = best if self.found is None or best[0] < self.found[0] else self.found
        self.log("measured/best", 1e3 * self.found[0], prog_bar=True, batch_size=1)
        self.log("measured/greedy", 1e3 * (found[0] or np.nan), batch_size=1)
        worst = FAILED * max(seconds for seconds, _ in ran)
        return np.array([worst if seconds is None else seconds for seconds in found])

    def on_train_epoch_end(self) -> None:
        """Saves the network, and beside it the fastest placement that was measured."""
        if self.export is None or self.found is None or not self.trainer.is_global_zero:
            return
        folder = Path(self.export)
        save_whole(self.average, folder)
        self.objective.keep(str(folder.parent / "placement.json"), self.found[1])


def _placement(episodes: Episodes, unit_device: IntArray) -> Placement:
    space = episodes.space
    device = space.spread(unit_device)
    return finished_placement(space.problem, device, space.sequence(device)[1], placer="gnn")
