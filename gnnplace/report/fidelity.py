"""What ``gnnplace fidelity`` measured, and how it is shown: lines, a table, a page, files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import Namespace
from rich.table import Table

from gnnplace import api
from gnnplace.cli.commands import console
from gnnplace.cluster import write_cluster
from gnnplace.fidelity.agreement import Agreement, ceiling
from gnnplace.fidelity.calibration import (
    Calibration,
    calibrated,
    calibrated_cluster,
    write_calibration,
)
from gnnplace.fidelity.residuals import link_residuals, op_residuals
from gnnplace.files import write_json, write_text
from gnnplace.measurements import StepRecord
from gnnplace.measurements.environment import machine
from gnnplace.measurements.samples import Sample
from gnnplace.problem import Problem, problem_to_data
from gnnplace.report import fidelity_page as html
from gnnplace.report import seconds_text

SHOWN_OPS = 12
HEAD = ("placement", "predicted", "calibrated", "measured", "error", "calibrated error")


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

    def cells(self) -> tuple[str, ...]:
        """For a table."""
        if self.measured is None:
            shown = "-" if self.predicted is None else seconds_text(self.predicted)
            return (self.name, shown, "-", "-", self.error, "-")
        return (
            self.name,
            *("-" if s is None else seconds_text(s) for s in (self.predicted, self.calibrated)),
            seconds_text(self.measured),
            *(
                "-" if s is None else f"{s / self.measured - 1:+.1%}"
                for s in (self.predicted, self.calibrated)
            ),
        )


@dataclass
class Study:
    """What was measured and what came out.

    Attributes:
        repeated: Of one half of the rounds with the other, shortest steps.
        typical_repeated: The same of median steps.
        before: Of predictions as profiled with shortest steps.
        after: Of predictions that are calibrated on other placements with shortest steps.
        typical: Of these with median steps.
    """

    args: Namespace
    problem: Problem
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


def mode_of(study: Study) -> str:
    """Measured or emulated, as all of its runs were."""
    if study.args.mode != "auto":
        return str(study.args.mode)
    modes = {api.execution_mode(s.placement, s.problem) for s in study.samples}
    return modes.pop() if len(modes) == 1 else "emulated"


def _title(study: Study) -> str:
    args = study.args
    return f"{args.model} on {args.cluster}, {study.problem.microbatches} micro-batches"


def print_study(study: Study) -> None:
    """A table and the lines below it, or one JSON object."""
    if study.args.json:
        sys.stdout.write(json.dumps(_data(study)) + "\n")
        return
    out, shown = console(), Table(*HEAD, title=_title(study))
    for row in study.rows:
        shown.add_row(*row.cells())
    out.print(shown)
    for line in _lines(study):
        out.print(line, soft_wrap=True)


def _lines(study: Study) -> list[str]:
    failures = sum(row.measured is None for row in study.rows)
    return [
        *([_repeat_line(study.repeated)] if study.repeated is not None else []),
        f"as profiled: {study.before or study.note}",
        f"calibrated, cross-validated: {study.after or study.note}",
        *([_typical_line(study)] if study.typical is not None else []),
        f"calibration: {study.calibration if study.after else 'none'}",
        *([f"{failures} placements failed; they are rows above"] if failures else []),
        f"ops most off: {', '.join(_op_texts(study)[:5])}",
        f"written to {study.args.output}: fidelity.html, fidelity.json, calibration.json, "
        "problem.json and cluster.yaml (calibrated, for place)",
    ]


def _repeat_line(found: Agreement) -> str:
    return (
        f"measured is the shortest step of all rounds; two halves of the rounds agree with "
        f"Spearman {found.spearman:.3f} and differ by {found.mape:.1%}"
    )


def _typical_line(study: Study) -> str:
    line = f"with median steps, which include what disturbs the machine: {study.typical}"
    if study.typical_repeated is None:
        return line
    found = study.typical_repeated.spearman
    return (
        f"{line}; their halves agree with Spearman {found:.3f}, so that no prediction could reach "
        f"much more than {ceiling(found):.3f}"
    )


def _op_texts(study: Study) -> list[str]:
    return [
        f"{r.op} {seconds_text(r.predicted)} -> {seconds_text(r.measured)}"
        for r in op_residuals(study.samples, study.steps)[:SHOWN_OPS]
    ]


def _data(study: Study) -> dict[str, Any]:
    return {
        "model": study.args.model,
        "cluster": study.args.cluster,
        "microbatches": study.problem.microbatches,
        "fingerprint": study.problem.fingerprint,
        "machine": machine(),
        "rows": [asdict(row) for row in study.rows],
        "repeated": _finite(study.repeated),
        "before": _finite(study.before),
        "after": _finite(study.after),
        "typical": _finite(study.typical),
        "typical_repeated": _finite(study.typical_repeated),
        "typical_ceiling": _ceiling(study.typical_repeated),
        "calibration": asdict(study.calibration),
        "ops": [asdict(r) for r in op_residuals(study.samples, study.steps)],
        "links": [asdict(r) for r in link_residuals(_with_messages(study), study.steps)],
    }


def _ceiling(found: Agreement | None) -> float | None:
    known = found is not None and np.isfinite(found.spearman)
    return ceiling(found.spearman) if found is not None and known else None


def _finite(found: Agreement | None) -> dict[str, Any]:
    values = asdict(found) if found is not None else {}
    return {key: value if np.isfinite(value) else None for key, value in values.items()}


def _with_messages(study: Study) -> Sequence[Sample]:
    """Runs whose messages were measured and not simulated."""
    return study.samples if mode_of(study) == "measured" else ()


def write_study(study: Study, folder: Path) -> None:
    """Figures, a page, the calibration, and a calibrated problem and cluster."""
    c, problem = study.calibration, study.problem
    write_json(folder / "fidelity.json", _data(study))
    write_text(folder / "fidelity.html", _page(study))
    write_calibration(folder / "calibration.json", c, study.overlap)
    better = calibrated(problem, c, study.overlap)
    write_json(folder / "problem.json", problem_to_data(better) | {"x-calibration": asdict(c)})
    write_cluster(folder / "cluster.yaml", calibrated_cluster(problem.cluster, c))


def _page(study: Study) -> str:
    points = []
    for row in study.rows:
        if row.measured is not None and row.predicted is not None:
            points.append(html.Point(row.name, row.predicted, row.measured))
            after = row.calibrated or row.predicted
            points.append(html.Point(row.name, after, row.measured, "calibrated"))
    ops = op_residuals(study.samples, study.steps)[:SHOWN_OPS]
    links = link_residuals(_with_messages(study), study.steps)
    parts = [
        *map(html.paragraph, _lines(study)[:5]),
        html.paragraph("Grey: as profiled. Blue: calibrated on other placements."),
        html.scatter(points, _title(study)),
        html.heading("Placements"),
        html.table(HEAD, [row.cells() for row in study.rows]),
        html.heading("Ops that are most off"),
        html.table(
            ("op", "module", "predicted", "measured"),
            [(r.op, r.module or "-", *map(seconds_text, (r.predicted, r.measured))) for r in ops],
        ),
        html.heading("Messages, the sender's time"),
        html.table(
            ("link", "messages", "predicted", "measured"),
            [
                (
                    f"{r.source} to {r.target}",
                    str(r.messages),
                    *map(seconds_text, (r.predicted, r.measured)),
                )
                for r in links
            ],
        ),
    ]
    return html.page(f"Fidelity: {_title(study)}", parts)
