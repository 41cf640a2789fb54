"""A fidelity study, and the files that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.files import write_json, write_text
from gnnplace.measurements import (
    Agreement,
    FidelityRow,
    Sample,
    Study,
    apply_calibration,
    calibrate_cluster,
    ceiling,
    link_residuals,
    op_residuals,
    write_calibration,
)
from gnnplace.problem import describe_machine, problem_to_data, write_cluster
from gnnplace.report import html
from gnnplace.report.answer import (
    PAGE,
    Answer,
    Column,
    Drawing,
    Lines,
    Table,
    as_json,
    as_page,
    data_columns,
)
from gnnplace.report.pictures import BLUE, GREY, Axis, Series, chart, svg
from gnnplace.report.timeline import Timeline, from_simulation
from gnnplace.report.viewer import viewer
from gnnplace.simulation import simulate
from gnnplace.units import milliseconds_text, page_seconds, seconds_text

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure

SHOWN_OPS = 12


def describe_study(study: Study) -> Answer:
    """Describe predicted against measured step times of placements."""
    halves = study.typical_repeated
    is_measured = halves is not None and np.isfinite(halves.spearman)
    return Answer(
        title=f"Fidelity: {study.title}",
        sections=[
            _placement_table(study),
            Lines(_study_lines(study)),
            Drawing(lambda: _draw(study)),
            *_residual_tables(study),
        ],
        data={
            "model": study.model,
            "cluster": study.cluster,
            "microbatches": study.problem.microbatches,
            "fingerprint": study.problem.fingerprint,
            "machine": describe_machine(),
            "repeated": study.repeated or {},
            "before": study.before or {},
            "after": study.after or {},
            "typical": study.typical or {},
            "typical_repeated": halves or {},
            "typical_ceiling": ceiling(halves.spearman)
            if halves and is_measured
            else None,
            "calibration": study.calibration,
        },
    )


def _placement_table(study: Study) -> Table[FidelityRow]:
    def off(seconds: float | None, row: FidelityRow) -> str | None:
        """Format how far a prediction is from what was measured; None without either."""
        if seconds is None or row.measured is None:
            return None
        return f"{seconds / row.measured - 1:+.1%}"

    return Table(
        columns=[
            *data_columns(FidelityRow),
            Column("placement", "name"),
            Column("predicted", "predicted", seconds_text),
            Column("calibrated", "calibrated", seconds_text),
            Column("measured", "measured", seconds_text),
            Column(
                "error", lambda row: row.error or off(row.predicted, row), words=True
            ),
            Column("calibrated error", lambda row: off(row.calibrated, row)),
        ],
        rows=study.rows,
        title=study.title,
        key="rows",
    )


def _study_lines(study: Study) -> list[str]:
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


def _with_messages(study: Study) -> Sequence[Sample]:
    """Return the runs whose messages were measured and not simulated."""
    if study.mode == "measured":
        return study.samples
    return ()


def write_study(study: Study, folder: Path) -> None:
    """Write figures, a page, the calibration, and a calibrated problem and cluster."""
    c = study.calibration
    problem = study.problem
    answer = describe_study(study)
    write_json(folder / "fidelity.json", as_json(answer))
    write_text(folder / "fidelity.html", as_page(answer))
    write_calibration(folder / "calibration.json", c, study.overlap)
    better = apply_calibration(problem, c, study.overlap)
    write_json(
        folder / "problem.json", problem_to_data(better) | {"x-calibration": asdict(c)}
    )
    write_cluster(folder / "cluster.yaml", calibrate_cluster(problem.cluster, c))


def agreement_plot(rows: Sequence[FidelityRow], title: str) -> Figure:
    """Plot predicted against measured step times of the placements that ran.

    Points on the line agree.

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


def _draw(study: Study) -> list[html.Html]:
    """Draw predictions against measurements, and two steps as they were predicted."""
    picture = svg(agreement_plot(study.rows, study.title))
    return [html.figure(picture), *_viewer(study)]


def _viewer(study: Study) -> list[html.Html]:
    """Draw the predicted steps of the fastest placement and of the one predicted worst."""
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


def _residual_tables(study: Study) -> list[Table[Any]]:
    """Describe ops and messages that are most off; a terminal names the first ops in a line."""
    times = [
        Column[Any]("predicted", "predicted", seconds_text, "predicted"),
        Column[Any]("measured", "measured", seconds_text, "measured"),
    ]
    ops = Table(
        columns=[
            Column[Any]("op", "op", key="op"),
            Column("module", "module", key="module"),
            *times,
        ],
        rows=op_residuals(study.samples, study.steps),
        title="Ops that are most off",
        key="ops",
        max_rows=SHOWN_OPS,
        only=PAGE,
    )
    links = Table(
        columns=[
            Column[Any]("link from", "source", key="source"),
            Column("to", "target", key="target"),
            Column("messages", "messages", key="messages"),
            *times,
        ],
        rows=link_residuals(_with_messages(study), study.steps),
        title="Messages, the sender's time",
        key="links",
        only=PAGE,
    )
    return [ops, links]
