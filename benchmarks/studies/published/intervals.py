"""Intervals of frameworks: what they hold of rows whose family of models they did not see.

A family is the rows of one model in one set: versions of a run repeat, so that each family weighs
as much as any other. Distances from 1 of published over predicted seconds, on a log scale, are
divided by what the framework's intervals are wider for the row (`Framework.step_interval`), so that
all rows of a framework have one interval. Its tenth and ninetieth percentiles are taken without a
family, and the family's rows inside are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.published.outcomes import Outcome, timed
from gnnplace.arrays import FloatArray

TENTHS = (0.1, 0.9)
FEW = 3
"""Families below which nothing is left out."""


@dataclass(frozen=True)
class FrameworkInterval:
    """The interval of a framework's published rows.

    Attributes:
        framework: Its name.
        families: Families of models.
        rows: Rows with seconds.
        low: Of published over predicted seconds, of a row that is like others and has no experts.
        high: Likewise.
        families_inside: Share inside, mean over families that were left out.
        rows_inside: Share of all rows inside.
    """

    framework: str
    families: int
    rows: int
    low: float
    high: float
    families_inside: float
    rows_inside: float


def framework_intervals(found: Mapping[str, list[Outcome]]) -> list[FrameworkInterval]:
    """Return the interval of every framework with a few families.

    Args:
        found: Rows with their answers, by set.
    """
    by_framework: dict[str, dict[tuple[str, str], list[float]]] = {}
    for name, outcomes in found.items():
        for row in timed(outcomes):
            if row.setting is None:
                continue
            framework = row.setting.framework
            families = by_framework.setdefault(framework.name, {})
            families.setdefault((name, row.model), []).append(_distance(row))
    intervals = []
    for name, families in by_framework.items():
        logs = [np.array(family) for family in families.values()]
        if len(logs) < FEW:
            continue
        inside = []
        for index, family in enumerate(logs):
            low, high = _weighted_tenths(logs[:index] + logs[index + 1 :])
            inside.append((low <= family) & (family <= high))
        low, high = np.exp(_weighted_tenths(logs))
        intervals.append(
            FrameworkInterval(
                framework=name,
                families=len(logs),
                rows=sum(len(family) for family in logs),
                low=float(low),
                high=float(high),
                families_inside=float(np.mean([part.mean() for part in inside])),
                rows_inside=float(np.concatenate(inside).mean()),
            )
        )
    return intervals


def interval_lines(found: Mapping[str, list[Outcome]]) -> Iterator[str]:
    """Yield a table of the intervals in Markdown."""
    yield "\n## Intervals, each family of models left out in turn\n"
    yield "| framework | families | rows | low | high | inside, by family | inside, by row |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for one in framework_intervals(found):
        yield (
            f"| {one.framework} | {one.families} | {one.rows} | {one.low:.3f} | {one.high:.3f} | "
            f"{one.families_inside:.0%} | {one.rows_inside:.0%} |"
        )


def _distance(row: Outcome) -> float:
    """Return the log of published over predicted seconds, over what its interval is wider."""
    answer, framework = row.answer, row.sizes.framework
    assert answer.step_time is not None
    assert answer.high is not None
    width = np.log(answer.high / answer.step_time) / np.log(framework.constants["high"])
    return float(-np.log1p(row.error) / width)


def _weighted_tenths(families: list[FloatArray]) -> FloatArray:
    """Return the tenth and ninetieth percentile of rows, each family of one weight. [2]"""
    values = np.concatenate(families)
    weights = np.concatenate(
        [np.full(len(family), 1 / len(family)) for family in families]
    )
    order = np.argsort(values)
    weights = weights[order]
    places = (np.cumsum(weights) - weights / 2) / weights.sum()
    return np.asarray(np.interp(TENTHS, places, values[order]))
