"""How well one model's placements were predicted, and which ops and links were predicted badly.

``Study`` has the measurements and results of a study. ``op_residuals`` and ``link_residuals``
compare the predicted seconds of single ops and messages with measured ones.
"""

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
    """One placement of a study: predicted and measured seconds of a step.

    Attributes:
        name: The placer, or the variation of one, that made the placement.
        predicted: Seconds predicted from the problem as it was profiled.
        measured: Seconds of the shortest step of all rounds; None if the run failed.
        typical: Seconds of a typical step, from the median steps of the rounds.
        calibrated: Seconds predicted with parameters that were fitted to other placements.
        error: Why the placement was not measured; empty if it was.
        rounds: Seconds of the shortest step of every round.
        medians: Seconds of the median step of every round.
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
        mode: ``measured`` or ``emulated``; all runs have one mode.
        rows: Predicted and measured seconds of each placement.
        samples: The placements that were measured in every round.
        steps: Measured steps by the name of the placement.
        runs: Names of the runs in the store.
        repeated: Agreement of the shortest steps of one half of the rounds with the other half's.
        typical_repeated: The same of median steps.
        calibration: The calibration that was fitted to all samples.
        overlap: Mean number of other devices at work in the best placement; for the calibration.
        note: Why there is no agreement; empty if there is one.
        before: Agreement of predictions from profiled seconds with shortest steps.
        after: Agreement of predictions that are calibrated on other placements with shortest steps.
        typical: Agreement of these predictions with median steps.
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
        """Return a title: model, cluster and micro-batches."""
        return (
            f"{self.model} on {self.cluster}, {self.problem.microbatches} micro-batches"
        )


@dataclass(frozen=True)
class OpResidual:
    """The predicted and measured seconds of one op, over all runs.

    Attributes:
        op: The name of the op.
        module: The path of the module that it comes from; None if that is not known.
        predicted: Seconds in the problem, median over the runs.
        measured: Median seconds by its worker's processor clock, which other processes do not
            slow down.
    """

    op: str
    module: str | None
    predicted: float
    measured: float

    @property
    def excess(self) -> float:
        """Return the measured seconds beyond the predicted ones."""
        return self.measured - self.predicted


@dataclass(frozen=True)
class LinkResidual:
    """The predicted and measured seconds of messages over one link.

    Attributes:
        source: The name of the device that sends.
        target: The name of the device that receives.
        messages: The number of messages that were measured.
        predicted: Mean seconds that the link says a message takes of its sender.
        measured: Mean of the messages' measured seconds, each a median over the steps.
    """

    source: str
    target: str
    messages: int
    predicted: float
    measured: float


def op_residuals(
    samples: Sequence[Sample], steps: Mapping[str, Sequence[StepRecord]]
) -> list[OpResidual]:
    """Return the residuals of all ops, the largest one first.

    Args:
        samples: Measured runs with their problems.
        steps: The steps of every run, by the run's name.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, list[float]] = defaultdict(list)
    module: dict[str, str | None] = {}
    for sample in samples:
        problem = sample.problem
        run_steps = steps.get(sample.run or "", ())
        for i, name in enumerate(problem.graph.names):
            spans = [step.ops[name] for step in run_steps if name in step.ops]
            if not spans:
                continue
            device = sample.placement.device[i]
            measured[name].append(median(busy for _, _, busy in spans))
            predicted[name].append(float(problem.times[i, device]))
            module[name] = problem.module[i]
    residuals = [
        OpResidual(
            op=name,
            module=module[name],
            predicted=median(predicted[name]),
            measured=median(seconds),
        )
        for name, seconds in measured.items()
    ]
    return sorted(residuals, key=lambda residual: -abs(residual.excess))


def link_residuals(
    samples: Sequence[Sample], steps: Mapping[str, Sequence[StepRecord]]
) -> list[LinkResidual]:
    """Return the residuals of all links, sorted by the names of their devices.

    Only the seconds that a message takes of its sender are compared.

    Args:
        samples: Measured runs. Messages of emulated runs are simulated, and show nothing.
        steps: The steps of every run, by the run's name.
    """
    # Predicted and measured seconds of each message, by link.
    costs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        links = {
            (link.source, link.target): link for link in sample.problem.cluster.links
        }
        # Seconds of each message in the steps of this run.
        spans: dict[tuple[str, str, str, float], list[float]] = defaultdict(list)
        for step in steps.get(sample.run or "", ()):
            for value, _, source, target, size, start, finish in step.transfers:
                spans[value, source, target, size].append(finish - start)
        for (_, source, target, size), seconds in spans.items():
            link = links[source, target]
            costs[source, target].append((sender_seconds(link, size), median(seconds)))

    residuals = []
    for (source, target), messages in sorted(costs.items()):
        residual = LinkResidual(
            source=source,
            target=target,
            messages=len(messages),
            predicted=sum(predicted for predicted, _ in messages) / len(messages),
            measured=sum(measured for _, measured in messages) / len(messages),
        )
        residuals.append(residual)
    return residuals
