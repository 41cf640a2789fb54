"""A fidelity study as a table, lines, plain data, a page and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from gnnplace.files import write_json, write_text
from gnnplace.measurements import (
    Agreement,
    FidelityRow,
    Sample,
    Study,
    calibrated,
    calibrated_cluster,
    ceiling,
    link_residuals,
    op_residuals,
    write_calibration,
)
from gnnplace.problem import machine, problem_to_data, write_cluster
from gnnplace.report import html
from gnnplace.report.pictures import BLUE, GREY, Axis, Series, chart, svg
from gnnplace.report.timeline import Timeline, from_simulation
from gnnplace.report.viewer import viewer
from gnnplace.simulation import simulate
from gnnplace.units import milliseconds_text, page_seconds, seconds_text

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure

SHOWN_OPS = 12
HEAD = ("placement", "predicted", "calibrated", "measured", "error", "calibrated error")


def study_table(study: Study) -> Table:
    """One row a placement."""
    shown = Table(*HEAD, title=study.title)
    for row in study.rows:
        shown.add_row(*_cells(row))
    return shown


def _cells(row: FidelityRow) -> tuple[str, ...]:
    if row.measured is None:
        if row.predicted is None:
            shown = "-"
        else:
            shown = seconds_text(row.predicted)
        return (row.name, shown, "-", "-", row.error, "-")
    return (
        row.name,
        *(
            "-" if s is None else seconds_text(s)
            for s in (row.predicted, row.calibrated)
        ),
        seconds_text(row.measured),
        *(
            "-" if s is None else f"{s / row.measured - 1:+.1%}"
            for s in (row.predicted, row.calibrated)
        ),
    )


def study_lines(study: Study) -> list[str]:
    """Format lines that sum up the table."""
    failures = sum(row.measured is None for row in study.rows)
    ops = [
        f"{r.op} {seconds_text(r.predicted)} -> {seconds_text(r.measured)}"
        for r in op_residuals(study.samples, study.steps)[:5]
    ]
    return [
        *([_repeat_line(study.repeated)] if study.repeated is not None else []),
        f"as profiled: {study.before or study.note}",
        f"calibrated, cross-validated: {study.after or study.note}",
        *([_typical_line(study)] if study.typical is not None else []),
        f"calibration: {study.calibration if study.after else 'none'}",
        *([f"{failures} placements failed; they are rows above"] if failures else []),
        f"ops most off: {', '.join(ops)}",
    ]


def _repeat_line(found: Agreement) -> str:
    return (
        f"measured is the shortest step of all rounds; two halves of the rounds agree with "
        f"Spearman {found.spearman:.3f} and differ by {found.mape:.1%}"
    )


def _typical_line(study: Study) -> str:
    line = (
        f"with median steps, which include what disturbs the machine: {study.typical}"
    )
    if study.typical_repeated is None:
        return line
    rank_correlation = study.typical_repeated.spearman
    return (
        f"{line}; their halves agree with Spearman {rank_correlation:.3f}, so that no prediction "
        f"could reach much more than {ceiling(rank_correlation):.3f}"
    )


def study_data(study: Study) -> dict[str, Any]:
    """Return the study as plain data."""
    halves = study.typical_repeated
    measured = halves is not None and np.isfinite(halves.spearman)
    if halves is not None and measured:
        top = ceiling(halves.spearman)
    else:
        top = None
    return {
        "model": study.model,
        "cluster": study.cluster,
        "microbatches": study.problem.microbatches,
        "fingerprint": study.problem.fingerprint,
        "machine": machine(),
        "rows": [asdict(row) for row in study.rows],
        "repeated": _finite(study.repeated),
        "before": _finite(study.before),
        "after": _finite(study.after),
        "typical": _finite(study.typical),
        "typical_repeated": _finite(study.typical_repeated),
        "typical_ceiling": top,
        "calibration": asdict(study.calibration),
        "ops": [asdict(r) for r in op_residuals(study.samples, study.steps)],
        "links": [
            asdict(r) for r in link_residuals(_with_messages(study), study.steps)
        ],
    }


def _finite(found: Agreement | None) -> dict[str, Any]:
    values = asdict(found) if found is not None else {}
    return {key: value if np.isfinite(value) else None for key, value in values.items()}


def _with_messages(study: Study) -> Sequence[Sample]:
    """Return the runs whose messages were measured and not simulated."""
    if study.mode == "measured":
        return study.samples
    return ()


def write_study(study: Study, folder: Path) -> None:
    """Figures, a page, the calibration, and a calibrated problem and cluster."""
    c = study.calibration
    problem = study.problem
    write_json(folder / "fidelity.json", study_data(study))
    write_text(folder / "fidelity.html", _page(study))
    write_calibration(folder / "calibration.json", c, study.overlap)
    better = calibrated(problem, c, study.overlap)
    write_json(
        folder / "problem.json", problem_to_data(better) | {"x-calibration": asdict(c)}
    )
    write_cluster(folder / "cluster.yaml", calibrated_cluster(problem.cluster, c))


def agreement_plot(rows: Sequence[FidelityRow], title: str) -> Figure:
    """Predicted against measured step times of the placements that ran; they agree on the line.

    Args:
        rows: placements.
        title: first line.
    """
    ran = [
        (row, row.measured, row.predicted)
        for row in rows
        if row.measured and row.predicted
    ]
    profiled = [(row.name, measured, predicted) for row, measured, predicted in ran]
    calibrated_points = [
        (row.name, measured, row.calibrated or predicted)
        for row, measured, predicted in ran
    ]
    largest = 1.05e3 * max(
        (max(point[1:]) for point in profiled + calibrated_points), default=1e-3
    )
    series = [
        Series("they agree", [0, largest], [0, largest], dots=False, colour="#cccccc"),
        _dots("as profiled", profiled, GREY),
        _dots("calibrated on other placements", calibrated_points, BLUE),
    ]
    axes = [
        Axis(f"{quantity}, ms", limits=(0.0, largest))
        for quantity in ("measured", "predicted")
    ]
    return chart(series, (axes[0], axes[1]), title=title, square=True)


def _dots(name: str, points: Sequence[tuple[str, float, float]], colour: str) -> Series:
    x = [1e3 * measured for _, measured, _ in points]
    y = [1e3 * time for *_, time in points]
    labels = [
        f"{placement}, {name}: {milliseconds_text(predicted)} ms, "
        f"measured {milliseconds_text(measured)} ms"
        for placement, measured, predicted in points
    ]
    return Series(name, x, y, told=labels, joined="none", colour=colour)


def _page(study: Study) -> str:
    parts = [
        *map(html.paragraph, study_lines(study)[:5]),
        html.figure(svg(agreement_plot(study.rows, study.title))),
        html.heading("Placements"),
        html.table(HEAD, [_cells(row) for row in study.rows]),
        *_viewer(study),
        *_residuals(study),
    ]
    return html.page(f"Fidelity: {study.title}", parts)


def _viewer(study: Study) -> list[html.Html]:
    """Predicted steps of the placement that ran the fastest, and of the one most off."""
    predicted = {row.name: row.predicted for row in study.rows if row.predicted}
    samples = [sample for sample in study.samples if sample.name in predicted]
    if not samples:
        return []

    def off(sample: Sample) -> float:
        return abs(float(np.log(predicted[sample.name] / sample.measured)))

    fastest = min(samples, key=lambda sample: sample.measured)
    most_off = max(samples, key=off)
    steps = [_step(fastest, "the fastest"), _step(most_off, "the most off")]
    return [viewer(steps, title="Two placements as they were predicted")]


def _step(sample: Sample, what: str) -> Timeline:
    simulation = simulate(sample.problem, sample.placement)
    label = f"{what}, {sample.name}, measured {page_seconds(sample.measured)}"
    return from_simulation(sample.problem, simulation, label)


def _residuals(study: Study) -> list[html.Html]:
    ops = op_residuals(study.samples, study.steps)[:SHOWN_OPS]
    links = link_residuals(_with_messages(study), study.steps)
    op_lines = [
        (r.op, r.module or "-", *map(seconds_text, (r.predicted, r.measured)))
        for r in ops
    ]
    link_lines = [
        (
            f"{r.source} to {r.target}",
            str(r.messages),
            *map(seconds_text, (r.predicted, r.measured)),
        )
        for r in links
    ]
    return [
        html.heading("Ops that are most off"),
        html.table(("op", "module", "predicted", "measured"), op_lines),
        html.heading("Messages, the sender's time"),
        html.table(("link", "messages", "predicted", "measured"), link_lines),
    ]
