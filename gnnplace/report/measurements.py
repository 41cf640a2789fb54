"""Stored runs and calibrations as tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from gnnplace.measurements import Calibrated, Calibration, Forward, StoredRun
from gnnplace.units import seconds_text

COLUMNS = (
    "run",
    "began",
    "model",
    "M",
    "placer",
    "mode",
    "steps",
    "step",
    "predicted",
    "outcome",
)


def runs_table(runs: Sequence[StoredRun], title: str) -> Table:
    """One row a run, as they come."""
    table = Table(*COLUMNS, title=title)
    for run in runs:
        table.add_row(*_cells(run))
    return table


def _cells(run: StoredRun) -> tuple[str, ...]:
    outcome = run.outcome
    verified = {True: ", verified", False: ", WRONG", None: ""}[outcome.verified]
    return (
        run.id[:12],
        run.began[:19],
        run.model,
        str(run.microbatches),
        run.placer or "-",
        run.mode,
        str(run.steps),
        "-" if run.step_time is None else seconds_text(run.step_time),
        "-" if run.predicted is None else seconds_text(run.predicted),
        outcome.error or f"{outcome.status}{verified}",
    )


def calibration_table(found: Calibrated) -> Table:
    """Error and bias of every problem before and after."""
    samples = found.samples
    held_out = found.held_out
    table = Table(
        "problem", "M", "placements", "MAPE", "bias", "MAPE after", "bias after"
    )
    uncalibrated = [
        Forward(s.problem, s.placement).seconds(Calibration()) for s in samples
    ]
    groups: dict[str, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(sample.problem.fingerprint, []).append(i)
    for rows in [*groups.values(), list(range(len(samples)))]:
        measured = np.array([samples[i].measured for i in rows])
        cells = [
            samples[rows[0]].problem.name,
            str(samples[rows[0]].problem.microbatches),
        ]
        if len(rows) == len(samples) and len(groups) > 1:
            cells = ["all", "-"]
        for predicted in (uncalibrated, held_out):
            error = (np.array([predicted[i] for i in rows]) - measured) / measured
            cells += [f"{np.abs(error).mean():.1%}", f"{error.mean():+.1%}"]
        table.add_row(*cells[:2], str(len(rows)), *cells[2:])
    return table
