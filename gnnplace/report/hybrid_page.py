"""A hybrid study as one page: the recommendation, every split, time to converge against devices."""

from __future__ import annotations

import math

from gnnplace.plans.hybrid.advice import hours, sentence
from gnnplace.plans.hybrid.study import HybridStudy
from gnnplace.report import html
from gnnplace.report.html import Html
from gnnplace.report.hybrid import split_cells, study_lines
from gnnplace.report.hybrid_plot import hybrid_plot
from gnnplace.report.pictures import svg
from gnnplace.report.units import page_seconds

HEADS = ("devices", "groups x devices", "micro-batches", "step of a group", "all-reduce",
         "not hidden", "step", "examples of a step", "steps an epoch", "epochs",
         "time to converge", "remarks")  # fmt: skip


def hybrid_page(study: HybridStudy) -> str:
    """The text of the page."""
    note = f"step {study.origin['step']}; epochs {study.origin['epochs']}"
    title = f"{study.what} on up to {study.devices} devices"
    picture = hybrid_plot(study.rows, title=f"{title}: time to converge", note=note)
    told = [line for line in study_lines(study) if line != sentence(study.advice, study.devices)]
    parts = [
        html.cards(_cards(study)),
        html.paragraph(sentence(study.advice, study.devices)),
        html.figure(svg(picture)),
        html.heading("Every split"),
        _splits(study),
        html.heading("Where the figures come from"),
        *map(html.paragraph, told),
        html.footer("All times on this page are predicted."),
    ]
    return html.page(title, parts)


def _cards(study: HybridStudy) -> list[tuple[str, str]]:
    best, gain = study.advice.best, study.advice.gain
    if best is None:
        return [("none", "no split ends")]
    found = [
        (f"{best.groups} x {best.devices}", "groups x devices of a group, the best split"),
        (hours(best.seconds), "predicted time to converge"),
    ]
    return [*found, *([(f"{gain:+.1%}", "over data parallelism alone")] if gain else [])]


def _splits(study: HybridStudy) -> Html:
    finite = [row.seconds for row in study.rows if math.isfinite(row.seconds)]
    most = max(finite, default=1.0) or 1.0
    bars = [
        html.share(row.seconds / most if math.isfinite(row.seconds) else 0.0) for row in study.rows
    ]
    lines = [
        split_cells(row, page_seconds, "the best" if row is study.advice.best else row.note)
        for row in study.rows
    ]
    return html.table(HEADS, lines, bars=bars, words=True)
