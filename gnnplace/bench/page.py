"""A page of results: tables and plots in one HTML file that needs nothing else, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnnplace.bench.grid import Grid
from gnnplace.report import html


@dataclass(frozen=True)
class Section:
    """What one suite's rows come to.

    Attributes:
        name: the name of the suite, fit for a file's name.
        title: one line.
        grids: tables, the most important one first.
        plots: text of an SVG each, by what they show.
    """

    name: str
    title: str
    grids: Sequence[Grid]
    plots: dict[str, str]


def page(sections: Sequence[Section], note: str, origin: str) -> str:
    """The text of the page.

    Args:
        sections: in their order.
        note: how to read the tables.
        origin: where the rows are from.
    """
    parts = [html.paragraph(note), html.links([section.name for section in sections])]
    for section in sections:
        parts += _section(section)
    return html.page("gnnplace bench", [*parts, html.footer(origin)])


def _section(section: Section) -> list[html.Html]:
    first, *others = [grid.html() for grid in section.grids]
    plots = [html.figure(svg) for svg in section.plots.values()]
    return [html.heading(section.title, anchor=section.name), first, *plots, *others]
