"""``MeasuredReinforce``: fine-tunes the GNN for one model, by step times that were measured.

The same losses as ``Reinforce``; what draws take is asked of an objective that runs them. Nothing
is simulated, so the network learns what the machine really does, from few draws. A placement that
failed counts as ``FAILED`` times the slowest that ran. Placements that the objective's store knows
are not run again, so that a run that was killed goes on where it was; what is older than the
objective's age is, labels too, which are asked for at each step: the machine may have changed.

What draws find is not what the network learned. So its own greedy decode is measured before the
training, after each epoch and behind it, also on ``held_out`` objectives that it never sees, and
``own.csv`` beside the export says whether it moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.files import csv_text, write_text
from gnnplace.measurements import StepObjective
from gnnplace.placers import SearchSpace
from gnnplace.policy import Drawn, Episodes, Exposure
from gnnplace.problem import Placement
from gnnplace.simulation import finish_placement
from gnnplace.train.data_module import ProblemSample
from gnnplace.train.export import save_whole
from gnnplace.train.exposure import describe_exposure
from gnnplace.train.reinforce import Reinforce, unevenness

FAILED = 3.0
OWN = "own decode before"  # A key of a checkpoint


class MeasuredReinforce(Reinforce):
    """The GNN in training on one model; the data module is ``Rounds``.

    Args:
        objective: Measures placements, and has the problem.
        samples: Placements drawn a step, each of which is measured; at least 2.
        kept: Number of these that the policy gradient learns from.
        held_out: Objectives of other models, on which the greedy decode is measured before and
            after.
        given: Arguments of ``Reinforce``; no label is moved, since that would be simulated.

    Raises:
        InputError: A number is too small.
    """

    def __init__(
        self,
        objective: StepObjective,
        samples: int = 6,
        kept: int = 6,
        held_out: Sequence[StepObjective] = (),
        **given: Any,
    ) -> None:
        super().__init__(samples=samples, kept=kept, shared=0, moves=0, **given)
        self.objective = objective
        self.held_out = held_out
        self.before: list[float] = []
        self.found: tuple[float, Placement] | None = None

    @cached_property
    def sample(self) -> ProblemSample:
        """Return the objective's problem."""
        return ProblemSample(SearchSpace(self.objective.problem), 0)

    def exposures(self) -> tuple[Exposure, Exposure]:
        """Return the problem that is measured, and those that are validated on."""
        trained = describe_exposure([self.objective.problem])
        held_out = [objective.problem for objective in self.held_out]
        return trained, describe_exposure(held_out) if held_out else trained

    def batch_loss(self, batch: list[Any]) -> Tensor | None:
        """Return the loss of one step's draws; ``batch`` is of no meaning."""
        return super().batch_loss([self.sample])

    def seconds(self, episodes: Episodes, drawn: IntArray) -> FloatArray:
        """Return the measured seconds of a step of each placement, the greedy one among them."""
        placements = [_placement(episodes, unit_device) for unit_device in drawn]
        step_times = [
            measured.seconds for measured in self.objective.measure(placements)
        ]
        ran = [
            (s, p) for s, p in zip(step_times, placements, strict=True) if s is not None
        ]
        if not ran:
            return np.ones(len(drawn))
        best = min(ran, key=lambda pair: pair[0])
        if self.found is None or best[0] < self.found[0]:
            self.found = best
        self.log("measured/best_ms", 1e3 * self.found[0], prog_bar=True, batch_size=1)
        self.log("measured/greedy_ms", 1e3 * (step_times[0] or np.nan), batch_size=1)
        worst = FAILED * max(seconds for seconds, _ in ran)
        return np.array(
            [worst if seconds is None else seconds for seconds in step_times]
        )

    def measure_own_decodes(self) -> list[float]:
        """Return the measured seconds of the average's greedy decode of each objective.

        It is nan where the decode failed.
        """
        step_times = []
        for objective in (self.objective, *self.held_out):
            is_trained = objective is self.objective
            if is_trained:
                space = self.sample.space
            else:
                space = SearchSpace(objective.problem)
            episodes = Episodes(space, self.average.order)
            decode = episodes.greedy(episodes.network(self.average))
            seconds = objective.measure([_placement(episodes, decode)])[0].seconds
            step_times.append(float("nan") if seconds is None else seconds)
        return step_times

    def on_train_start(self) -> None:
        """Measure what the network decides before it learns."""
        self.before = self.before or self.measure_own_decodes()

    def on_train_end(self) -> None:
        """Save the network as it is, and what its own decode takes beside what it took."""
        super().on_train_end()
        if self.export is None or not self.trainer.is_global_zero:
            return
        rows: list[tuple[Any, ...]] = [
            ("problem", "held_out", "before_ms", "after_ms", "ratio")
        ]
        objectives = (self.objective, *self.held_out)
        for k, (objective, first_seconds, last_seconds) in enumerate(
            zip(objectives, self.before, self.measure_own_decodes(), strict=True)
        ):
            cells = (
                f"{1e3 * first_seconds:.4g}",
                f"{1e3 * last_seconds:.4g}",
                f"{last_seconds / first_seconds:.4f}",
            )
            rows.append((objective.problem.name, int(k > 0), *cells))
            self.print(
                f"own decode, {objective.problem.name}: {cells[0]} -> {cells[1]} ms"
            )
        write_text(Path(self.export).parent / "own.csv", csv_text(rows))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the own decode took before."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[OWN] = list(self.before)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what the own decode took before."""
        super().on_load_checkpoint(checkpoint)
        self.before = list(checkpoint.get(OWN, ()))

    def _best(
        self,
        sample: ProblemSample,
        episodes: Episodes,
        drawn: Drawn,
        cost: FloatArray,
        rng: np.random.Generator,
    ) -> IntArray:
        """Return the best placement, after the label is measured again: its cost is today's."""
        which = sample.index, drawn.limit
        if which in self.labels:
            devices = self.labels[which][1]
            seconds = self.objective.measure([_placement(episodes, devices)])[0].seconds
            uneven = unevenness(episodes, devices, drawn.limit)
            self.labels[which] = (
                np.inf if seconds is None else uneven * seconds,
                devices,
            )
        return super()._best(sample, episodes, drawn, cost, rng)

    @property
    def has_exported_best(self) -> bool:
        """Return whether a placement ran, after which each epoch exports the network."""
        return self.found is not None

    def on_train_epoch_end(self) -> None:
        """Save the network, and beside it the fastest placement that was measured."""
        if self.export is None or self.found is None or not self.trainer.is_global_zero:
            return
        folder = Path(self.export)
        save_whole(self.average, folder, self.card())
        self.objective.keep(str(folder.parent / "placement.json"), self.found[1])


def _placement(episodes: Episodes, unit_device: IntArray) -> Placement:
    space = episodes.space
    device = space.spread(unit_device)
    order = episodes.sequence(unit_device)[1]
    return finish_placement(space.problem, device, order, placer="gnn")
