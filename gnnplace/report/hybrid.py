"""A hybrid study as a table, lines and plain data.

A hybrid study as one page: the recommendation, every split, time to converge against devices.

Time to converge against devices, a line for each kind of split; both axes are logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from gnnplace.plans import (
    CONVERGENCE_SOURCE,
    HybridStudy,
    ReplicaAdvice,
    SplitRow,
    best_data_parallel,
    find_published_gain,
    gain_at_scale,
)
from gnnplace.plans import advice_sentence as sentence
from gnnplace.report import html
from gnnplace.report.answer import Answer, Lines, TerminalTable
from gnnplace.report.html import Html
from gnnplace.report.pictures import Axis, Series, chart, svg
from gnnplace.units import page_seconds, seconds_text, training_text

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure


def describe_hybrid(study: HybridStudy, *, remarks: Sequence[str] = ()) -> Answer:
    """Describe a hybrid study.

    Args:
        study: The study.
        remarks: Lines that a terminal shows below those of the study.
    """
    title = f"{study.what} on up to {study.devices} devices"
    return Answer(
        title=title,
        sections=[
            TerminalTable(lambda: hybrid_table(study.rows, title, study.advice)),
            Lines([*hybrid_study_lines(study), *remarks]),
        ],
        data=lambda: {"training": hybrid_study_data(study)},
        page=lambda: hybrid_page(study),
    )


def hybrid_study_data(study: HybridStudy) -> dict[str, Any]:
    """Return the study as plain data, in seconds."""
    published = find_published_gain(study.name)
    best = study.advice.best
    alternative = None
    if study.alternative is not None:
        alternative_best = study.alternative.advice.best
        alternative = {
            "group": study.alternative.step,
            "origin": study.alternative.origin["step"],
            "best": None if alternative_best is None else row_data(alternative_best),
        }
    return {
        "model": study.what,
        "devices": study.devices,
        "origin": study.origin,
        "group": study.step,
        "alternative": alternative,
        "rows": [row_data(row) for row in study.rows],
        "crossover": study.advice.crossover,
        "recommendation": sentence(study.advice, study.devices),
        "best": None if best is None else row_data(best),
        "gain_over_data_parallel": study.advice.gain,
        "gain_at_scale": gain_at_scale(study.rows),
        "published_gain_at_least": None if published is None else published.gain,
    }


def row_data(row: SplitRow) -> dict[str, Any]:
    """Return a row as plain data, in seconds."""
    parts = row.parts
    return {
        "devices": row.total_devices,
        "groups": row.groups,
        "group_devices": row.devices,
        "microbatches": row.microbatches,
        "step_alone": None if parts is None else parts.alone,
        "all_reduce": None if parts is None else parts.all_reduce,
        "exposed": None if parts is None else parts.exposed,
        "step": None if parts is None else parts.total,
        "global_batch": row.global_batch,
        "steps_per_epoch": row.steps,
        "epochs": row.epochs,
        "seconds": row.seconds if math.isfinite(row.seconds) else None,
        "note": row.note,
    }


def hybrid_study_lines(study: HybridStudy) -> list[str]:
    """Format the lines below the table."""
    num_devices = study.devices
    cross = study.advice.crossover
    lines = [
        f"{quantity.replace('_', '-')}: {source}"
        for quantity, source in study.origin.items()
    ]
    if cross is None:
        crossover_text = (
            f"none up to {num_devices} devices: data parallelism alone is fastest there"
        )
    else:
        crossover_text = f"from {cross} devices on a hybrid ends sooner than DP"
    return [
        *lines,
        f"cross-over: {crossover_text}",
        *_alternative_lines(study),
        *_published_lines(study),
        sentence(study.advice, num_devices),
    ]


def _alternative_lines(study: HybridStudy) -> list[str]:
    """Return what the other way of sharing a group's step reaches."""
    if study.alternative is None:
        return []
    best = study.alternative.advice.best
    if best is None:
        return []
    return [
        f"each step is {study.step}; with {study.alternative.step} {best.groups} x {best.devices} "
        f"is best: {training_text(best.seconds)} to converge"
    ]


def _published_lines(study: HybridStudy) -> list[str]:
    published = find_published_gain(study.name)
    gain = gain_at_scale(study.rows)
    alone = best_data_parallel(study.rows)
    lines = []
    if gain is not None and alone is not None:
        lines.append(
            f"best hybrid over the best data parallelism alone ({alone.total_devices} devices, "
            f"{training_text(alone.seconds)}): {gain:+.1%} (predicted)"
        )
    if published is not None:
        lines.append(
            f"published for {published.model}: at least {published.gain:+.1%} "
            f"({CONVERGENCE_SOURCE})"
        )
    return lines


def split_cells(row: SplitRow, shown: Callable[[float], str], remark: str) -> list[str]:
    """Format the cells of a split: dashes and the reason if it was not placed.

    Args:
        row: the split.
        shown: how seconds are written.
        remark: the last cell.
    """
    split = f"{row.groups} x {row.devices}"
    if row.parts is None:
        return [str(row.total_devices), split, *["-"] * 9, row.note]
    parts = row.parts
    return [
        str(row.total_devices),
        split,
        str(row.microbatches),
        *map(shown, (parts.alone, parts.all_reduce, parts.exposed, parts.total)),
        str(row.global_batch),
        str(row.steps),
        "-" if row.epochs is None else f"{row.epochs:.4g}",
        training_text(row.seconds),
        remark,
    ]


def hybrid_table(rows: Sequence[SplitRow], title: str, advice: ReplicaAdvice) -> Table:
    """Return a table of all splits. The recommended one is marked."""
    heads = (
        "devices",
        "groups x devices",
        "M",
        "step of a group",
        "all-reduce",
        "exposed",
        "step",
        "global batch",
        "steps an epoch",
        "epochs",
        "time to converge",
        "",
    )
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(
            *split_cells(row, seconds_text, "best" if row is advice.best else row.note)
        )
    return table


HEADS = (
    "devices",
    "groups x devices",
    "micro-batches",
    "step of a group",
    "all-reduce",
    "not hidden",
    "step",
    "examples of a step",
    "steps an epoch",
    "epochs",
    "time to converge",
    "remarks",
)


def hybrid_page(study: HybridStudy) -> str:
    """Make the text of the page."""
    note = f"step {study.origin['step']}; epochs {study.origin['epochs']}"
    title = f"{study.what} on up to {study.devices} devices"
    picture = hybrid_plot(study.rows, title=f"{title}: time to converge", note=note)
    origins = [
        line
        for line in hybrid_study_lines(study)
        if line != sentence(study.advice, study.devices)
    ]
    parts = [
        html.cards(_cards(study)),
        html.paragraph(sentence(study.advice, study.devices)),
        html.figure(svg(picture)),
        html.heading("Every split"),
        _splits(study),
        html.heading("Where the figures come from"),
        *map(html.paragraph, origins),
        html.footer("All times on this page are predicted."),
    ]
    return html.page(title, parts)


def _cards(study: HybridStudy) -> list[tuple[str, str]]:
    best = study.advice.best
    gain = study.advice.gain
    if best is None:
        return [("none", "no split ends")]
    cards = [
        (
            f"{best.groups} x {best.devices}",
            "groups x devices of a group, the best split",
        ),
        (training_text(best.seconds), "predicted time to converge"),
    ]
    return [
        *cards,
        *([(f"{gain:+.1%}", "over data parallelism alone")] if gain else []),
    ]


def _splits(study: HybridStudy) -> Html:
    finite = [row.seconds for row in study.rows if math.isfinite(row.seconds)]
    slowest = max(finite, default=1.0) or 1.0
    bars = [
        html.share(row.seconds / slowest if math.isfinite(row.seconds) else 0.0)
        for row in study.rows
    ]
    lines = [
        split_cells(
            row, page_seconds, "the best" if row is study.advice.best else row.note
        )
        for row in study.rows
    ]
    return html.table(HEADS, lines, bars=bars, words=True)


# Seconds that are round numbers of seconds, minutes, hours or days.
ROUND = [k * unit for unit in (1, 60) for k in (1, 2, 5, 10, 20, 30)]
ROUND += [
    k * 3600 for k in (1, 2, 5, 10, 24, 48, 120, 240, 480, 1200, 2400, 4800, 12000)
]


def hybrid_plot(rows: Sequence[SplitRow], *, title: str, note: str) -> Figure:
    """Draw the time to converge of every split.

    Args:
        rows: splits; those without an end-to-end time are left out.
        title: first line.
        note: second line: where the figures come from.
    """
    lines: dict[str, list[SplitRow]] = {}
    for row in sorted(rows, key=lambda row: (row.devices, row.total_devices)):
        if math.isfinite(row.seconds):
            lines.setdefault(row.name, []).append(row)
    series = [_line(name, line) for name, line in lines.items()]
    seconds = [second for one in series for second in one.y]
    ticks = [tick for tick in ROUND if seconds and min(seconds) <= tick <= max(seconds)]
    counts = sorted({count for one in series for count in one.x})
    axes = (
        Axis("devices", logarithmic=True, ticks=counts),
        Axis("time to converge", logarithmic=True, ticks=ticks, text=training_text),
    )
    return chart(series, axes, title=title, note=note)


def _line(name: str, line: Sequence[SplitRow]) -> Series:
    return Series(
        name,
        [row.total_devices for row in line],
        [row.seconds for row in line],
        told=[
            f"{row.total_devices} devices, {row.groups} x {row.devices}: "
            f"{training_text(row.seconds)}"
            for row in line
        ],
    )
