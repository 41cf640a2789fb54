"""Stored runs and calibrations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnplace.measurements import Calibrated, Calibration, Forward, StoredRun
from gnnplace.problem import Problem
from gnnplace.report.answer import Column, Table, data_columns
from gnnplace.units import seconds_text

VERIFIED = {True: ", verified", False: ", WRONG", None: ""}


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


def calibration_table(calibrated: Calibrated) -> Table[list[int]]:
    """Describe error and bias of every problem before and after; a row is indices of samples."""
    samples = calibrated.samples
    measured = np.array([sample.measured for sample in samples])
    forwards = [Forward(sample.problem, sample.placement) for sample in samples]
    profiled = np.array([forward.seconds(Calibration()) for forward in forwards])
    before = profiled / measured - 1
    after = np.array(calibrated.held_out) / measured - 1
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.problem.fingerprint, []).append(index)
    everything = list(range(len(samples)))

    def problem(row: list[int]) -> Problem | None:
        """Return the problem of a row; None where it is of all problems."""
        return None if row is everything else samples[row[0]].problem

    return Table(
        columns=[
            Column("problem", lambda row: getattr(problem(row), "name", "all")),
            Column("M", lambda row: getattr(problem(row), "microbatches", None)),
            Column("placements", len),
            Column("MAPE", lambda row: np.abs(before[row]).mean(), "{:.1%}".format),
            Column("bias", lambda row: before[row].mean(), "{:+.1%}".format),
            Column(
                "MAPE after", lambda row: np.abs(after[row]).mean(), "{:.1%}".format
            ),
            Column("bias after", lambda row: after[row].mean(), "{:+.1%}".format),
        ],
        rows=[*groups.values(), *([everything] if len(groups) > 1 else [])],
    )
