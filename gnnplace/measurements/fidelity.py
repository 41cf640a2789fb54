"""``Study``: what measuring many placements of one model gave, and how well it was predicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnnplace.measurements import StepRecord
from gnnplace.measurements.agreement import Agreement
from gnnplace.measurements.calibration import Calibration
from gnnplace.measurements.samples import Sample
from gnnplace.problem import Problem


@dataclass
class Row:
    """One placement.

    Attributes:
        name: Who made it.
        predicted: Seconds, as profiled.
        measured: Seconds of the shortest step of all rounds; None if it failed.
        typical: Seconds of a step, medians settled over the rounds.
        rounds: Seconds of the shortest step of every round.
        medians: Seconds of the median step of every round.
        calibrated: Seconds, by parameters fitted to other placements.
        error: Why it failed.
    """

    name: str
    predicted: float | None = None
    measured: float | None = None
    typical: float | None = None
    calibrated: float | None = None
    error: str = ""
    rounds: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)


@dataclass
class Study:
    """What was measured and what came out.

    Attributes:
        model: As everywhere.
        cluster: As it was asked for.
        problem: As profiled.
        mode: ``measured`` or ``emulated``, as all runs were.
        rows: One a placement.
        samples: Placements that were measured in every round.
        steps: Measured steps, by the placement's name.
        runs: Names of the runs in the store.
        calibration: Fitted to all samples.
        overlap: The overlap of computing and sending, in the best placement; for the calibration.
        note: Why there is no agreement, where there is none.
        repeated: The agreement of one half of the rounds with the other, shortest steps.
        typical_repeated: The same of median steps.
        before: The agreement of predictions as profiled with shortest steps.
        after: The agreement of predictions that are calibrated on other placements with shortest
            steps.
        typical: The agreement of these with median steps.
    """

    model: str
    cluster: str
    problem: Problem
    mode: str = "measured"
    rows: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    steps: dict[str, list[StepRecord]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    repeated: Agreement | None = None
    typical_repeated: Agreement | None = None
    calibration: Calibration = field(default_factory=Calibration)
    overlap: float = 0.0
    note: str = ""
    before: Agreement | None = None
    after: Agreement | None = None
    typical: Agreement | None = None

    @property
    def title(self) -> str:
        """What was studied, in a few words."""
        return f"{self.model} on {self.cluster}, {self.problem.microbatches} micro-batches"
