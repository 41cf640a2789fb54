"""How well one model's placements were predicted, and which ops and which links are off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gnnplace.measurements.calibration import Calibration
from gnnplace.measurements.records import StepRecord
from gnnplace.measurements.samples import Agreement, Sample
from gnnplace.problem import Problem
from gnnplace.simulation import sender_seconds


@dataclass
class FidelityRow:
    """One placement.

    Attributes:
        name: The placer, or the variation of one, that made the placement.
        predicted: Seconds of a step by the problem as it was profiled.
        measured: Seconds of the shortest step of all rounds; None if it failed.
        typical: Seconds of a step, medians settled over the rounds.
        rounds: Seconds of the shortest step of every round.
        medians: Seconds of the median step of every round.
        calibrated: Seconds, by parameters fitted to other placements.
        error: Why it was not measured; empty where it was.
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
    """The measurements of a study, and its results.

    Attributes:
        model: The model, as a command names it.
        cluster: The cluster, as the caller named it.
        problem: The problem as it was profiled.
        mode: ``measured`` or ``emulated``, as all runs were.
        rows: What each placement was predicted and measured to take.
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
    rows: list[FidelityRow] = field(default_factory=list)
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
        """Return what was studied, in a few words."""
        return (
            f"{self.model} on {self.cluster}, {self.problem.microbatches} micro-batches"
        )


@dataclass(frozen=True)
class OpResidual:
    """One op over all runs.

    Attributes:
        op: The name of the op.
        module: Where it comes from, if that is known.
        predicted: Seconds by the problem, median over the devices that it ran on.
        measured: Median seconds by the worker's own clock, which other processes do not slow down.
    """

    op: str
    module: str | None
    predicted: float
    measured: float

    @property
    def excess(self) -> float:
        """Return by how many seconds it takes longer than predicted."""
        return self.measured - self.predicted


@dataclass(frozen=True)
class LinkResidual:
    """The error of predicted messages over one link.

    Attributes:
        source: The name of the device that sends.
        target: The name of the device that receives.
        messages: How many were measured.
        predicted: Mean seconds of the sender a message, by the link.
        measured: Mean over the messages of their median seconds.
    """

    source: str
    target: str
    messages: int
    predicted: float
    measured: float


def op_residuals(
    samples: Sequence[Sample], steps: Mapping[str, Sequence[StepRecord]]
) -> list[OpResidual]:
    """Return the residuals of all ops, the largest number of seconds first.

    Args:
        samples: Runs with their problems.
        steps: The steps of every run, by its name.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, list[float]] = defaultdict(list)
    module: dict[str, str | None] = {}
    for sample in samples:
        problem = sample.problem
        rows = steps.get(sample.run or "", ())
        for i, name in enumerate(problem.graph.names):
            spans = [row.ops[name] for row in rows if name in row.ops]
            if spans:
                measured[name].append(median(busy for _, _, busy in spans))
                predicted[name].append(
                    float(problem.times[i, sample.placement.device[i]])
                )
                module[name] = problem.module[i]
    residuals = [
        OpResidual(name, module[name], median(predicted[name]), median(values))
        for name, values in measured.items()
    ]
    return sorted(residuals, key=lambda r: -abs(r.excess))


def link_residuals(
    samples: Sequence[Sample], steps: Mapping[str, Sequence[StepRecord]]
) -> list[LinkResidual]:
    """Return the residuals of all links by name, counting only the sender's own time.

    Args:
        samples: Measured runs; the messages of emulated ones are simulated and say nothing.
        steps: The steps of every run, by its name.
    """
    costs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        links = {
            (link.source, link.target): link for link in sample.problem.cluster.links
        }
        spans: dict[tuple[str, str, str, float], list[float]] = defaultdict(list)
        for row in steps.get(sample.run or "", ()):
            for value, _, source, target, size, start, finish in row.transfers:
                spans[value, source, target, size].append(finish - start)
        for (_, source, target, size), seconds in spans.items():
            link = links[source, target]
            costs[source, target].append((sender_seconds(link, size), median(seconds)))
    return [
        LinkResidual(
            source,
            target,
            len(rows),
            sum(p for p, _ in rows) / len(rows),
            sum(m for _, m in rows) / len(rows),
        )
        for (source, target), rows in sorted(costs.items())
    ]
