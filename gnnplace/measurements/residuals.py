"""Which ops and which links are off: measured times of ops and messages beside the predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gnnplace.measurements.records import StepRecord
from gnnplace.measurements.samples import Sample
from gnnplace.simulation.transfer import sender_seconds


@dataclass(frozen=True)
class OpResidual:
    """One op over all runs.

    Attributes:
        op: Its name.
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
        """Seconds that it takes longer than predicted."""
        return self.measured - self.predicted


@dataclass(frozen=True)
class LinkResidual:
    """All messages over one link.

    Attributes:
        source: Sending device.
        target: Receiving device.
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
    """Residuals of all ops, the largest in seconds first.

    Args:
        samples: Runs with their problems.
        steps: The steps of every run, by its name.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, list[float]] = defaultdict(list)
    module: dict[str, str | None] = {}
    for sample in samples:
        problem, rows = sample.problem, steps.get(sample.run or "", ())
        for i, name in enumerate(problem.graph.names):
            spans = [row.ops[name] for row in rows if name in row.ops]
            if spans:
                measured[name].append(median(busy for _, _, busy in spans))
                predicted[name].append(float(problem.times[i, sample.placement.device[i]]))
                module[name] = problem.module[i]
    found = [
        OpResidual(name, module[name], median(predicted[name]), median(values))
        for name, values in measured.items()
    ]
    return sorted(found, key=lambda r: -abs(r.excess))


def link_residuals(
    samples: Sequence[Sample], steps: Mapping[str, Sequence[StepRecord]]
) -> list[LinkResidual]:
    """Residuals of all links, in the order of their names; the sender's own time alone.

    Args:
        samples: Measured runs; the messages of emulated ones are simulated and say nothing.
        steps: The steps of every run, by its name.
    """
    costs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        links = {(link.source, link.target): link for link in sample.problem.cluster.links}
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
