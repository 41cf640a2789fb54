"""Stored runs and calibrations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnplace.measurements import (
    Calibrated,
    Calibration,
    Forward,
    MeasurementStore,
    StoredRun,
)
from gnnplace.report.answer import (
    Answer,
    Column,
    Lines,
    Table,
    TextTable,
    data_columns,
    table_data,
    text_table,
)
from gnnplace.units import seconds_text

VERIFIED = {True: ", verified", False: ", WRONG", None: ""}


def describe_store(store: MeasurementStore, *, runs: Sequence[StoredRun]) -> Answer:
    """Describe runs of a store, for programs as a list.

    Args:
        store: The store.
        runs: Some of its runs, the newest first.
    """
    title = f"{len(runs)} runs in {store.url}, the newest first"
    table = run_table(runs, title)
    return Answer(title, [table], data=lambda: table_data(table))


def describe_calibrated(calibrated: Calibrated) -> Answer:
    """Describe a calibration: errors before and after, and its parameters."""
    return Answer(
        title="Calibration",
        sections=[
            calibration_table(calibrated),
            Lines([f"calibration: {calibrated.calibration}"]),
        ],
    )


def run_table(runs: Sequence[StoredRun], title: str) -> Table[StoredRun]:
    """Describe stored runs, as they come."""

    def outcome(run: StoredRun) -> str:
        """Say how a run ended, and whether it computed what one device computes."""
        ended = f"{run.outcome.status}{VERIFIED[run.outcome.verified]}"
        return run.outcome.error or ended

    return Table(
        columns=[
            *data_columns(StoredRun),
            Column("run", lambda run: run.id[:12]),
            Column("began", lambda run: run.began[:19], words=True),
            Column("model", "model", words=True),
            Column("M", "microbatches"),
            Column("placer", "placer", words=True),
            Column("mode", "mode", words=True),
            Column("steps", "steps"),
            Column("step", "step_time", seconds_text, "step_time"),
            Column("predicted", "predicted", seconds_text),
            Column("outcome", outcome, words=True),
        ],
        rows=runs,
        title=title,
    )


CALIBRATION_HEADINGS = (
    "problem",
    "M",
    "placements",
    "MAPE",
    "bias",
    "MAPE after",
    "bias after",
)


def calibration_table(calibrated: Calibrated) -> TextTable:
    """Describe error and bias of every problem before and after."""
    samples = calibrated.samples
    profiled = [Forward(s.problem, s.placement).seconds(Calibration()) for s in samples]
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.problem.fingerprint, []).append(index)
    everything = list(range(len(samples)))
    lines = []
    for indices in [*groups.values(), *([everything] if len(groups) > 1 else [])]:
        measured = np.array([samples[index].measured for index in indices])
        problem = samples[indices[0]].problem
        cells = [problem.name, str(problem.microbatches)]
        if indices is everything:
            cells = ["all", "-"]
        cells.append(str(len(indices)))
        for predicted in (profiled, calibrated.held_out):
            errors = np.array([predicted[index] for index in indices]) / measured - 1
            cells += [f"{np.abs(errors).mean():.1%}", f"{errors.mean():+.1%}"]
        lines.append(cells)
    return text_table("", CALIBRATION_HEADINGS, lines)
