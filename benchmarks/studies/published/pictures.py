"""Pictures of published runs: predicted against published seconds, and errors by GPUs.

A plot of each framework, both axes logarithmic, a colour for each of its sets; then the errors of
all frameworks against the number of GPUs. They need matplotlib, the extra ``report``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.studies.published.outcomes import Outcome, mean, median, timed
from gnnplace.report.pictures import GREY, Axis, Series, chart, write_picture

if TYPE_CHECKING:
    from gnnplace.report import Picture

MADE_BY = "python -m benchmarks.studies published --data FOLDER -o FOLDER"
ERRORS = "errors"  # name of the picture of errors by GPUs
MARGIN = 1.25  # of the axes, beyond the least and the most seconds


def write_pictures(
    found: Mapping[str, list[Outcome]], frameworks: Mapping[str, str], folder: Path
) -> list[str]:
    """Write the pictures of the sets whose seconds are known.

    Args:
        found: Rows and answers, by set.
        frameworks: The framework of each set.
        folder: Where they are written.

    Returns:
        Names of the files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    by_framework: dict[str, dict[str, list[Outcome]]] = {}
    for name, outcomes in found.items():
        rows = timed(outcomes)
        if rows:
            by_framework.setdefault(frameworks[name], {})[name] = rows
    names = []
    for framework, sets in by_framework.items():
        word = re.sub(r"[^a-z0-9]+", "-", framework.lower()).strip("-")
        names.append(f"published-{word}.svg")
        write_picture(folder / names[-1], seconds_picture(framework, sets))
    if by_framework:
        names.append(f"published-{ERRORS}.svg")
        write_picture(folder / names[-1], error_picture(by_framework))
    return names


def seconds_picture(framework: str, sets: Mapping[str, Sequence[Outcome]]) -> Picture:
    """Return predicted against published seconds of a framework's sets."""
    pairs = {name: list(_seconds(rows)) for name, rows in sets.items()}
    every = [value for points in pairs.values() for pair in points for value in pair]
    ends = (min(every) / MARGIN, max(every) * MARGIN)
    equal = Series(
        name="predicted = published", x=ends, y=ends, dots=False, colour=GREY
    )
    series = [
        Series(
            name=f"{name} ({len(points)})",
            x=[published for published, _ in points],
            y=[predicted for _, predicted in points],
            joined="none",
        )
        for name, points in pairs.items()
    ]
    errors = [row.error for rows in sets.values() for row in rows]
    measure = f"error {mean(errors):.1%}, median {median(errors):.1%}"
    return chart(
        [*series, equal],
        (
            Axis(name="published seconds a step", logarithmic=True, limits=ends),
            Axis(name="predicted seconds a step", logarithmic=True, limits=ends),
        ),
        title=f"{framework}: predicted against published steps",
        note=f"{len(errors)} rows: {measure}. {MADE_BY}",
        square=True,
    )


def error_picture(by_framework: Mapping[str, Mapping[str, list[Outcome]]]) -> Picture:
    """Return the relative error of each row against its GPUs, a colour a framework."""
    series = []
    for framework, sets in by_framework.items():
        rows = [row for rows in sets.values() for row in rows if num_gpus(row)]
        if rows:
            series.append(
                Series(
                    name=f"{framework} ({len(rows)})",
                    x=[num_gpus(row) for row in rows],
                    y=[100 * row.error for row in rows],
                    joined="none",
                )
            )
    ends = (
        min(min(one.x) for one in series) / MARGIN,
        max(max(one.x) for one in series) * MARGIN,
    )
    none = Series(name="", x=ends, y=(0.0, 0.0), dots=False, colour=GREY)
    return chart(
        [none, *series],
        (
            Axis(name="GPUs", logarithmic=True, limits=ends),
            Axis(name="predicted over published, less one, %"),
        ),
        title="Errors of predicted steps by GPUs",
        note=f"Above zero: predicted too slow. {MADE_BY}",
    )


def num_gpus(outcome: Outcome) -> int:
    """Return the GPUs that a row ran on; 0 where its set does not tell."""
    if outcome.gpus or outcome.setting is None:
        return outcome.gpus
    return len(outcome.setting.cluster.devices)


def _seconds(rows: Sequence[Outcome]) -> Iterator[tuple[float, float]]:
    """Yield published and predicted seconds of rows that have both."""
    for row in rows:
        if row.seconds is not None and row.answer.step_time is not None:
            yield row.seconds, row.answer.step_time
