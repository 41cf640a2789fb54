"""A page of results: tables and plots in one HTML file that needs nothing else, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gnnplace.bench.grid import Grid

STYLE = """
body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 78em; padding: 0 1em; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: .4em 0 1.4em; }
th, td { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #888; }
td { white-space: nowrap; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
footer { color: #555; margin-top: 2em; }
""".strip()


@dataclass(frozen=True)
class Section:
    """What one suite's rows come to.

    Attributes:
        name: of the suite, fit for a file's name.
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
    links = " · ".join(f'<a href="#{escape(s.name)}">{escape(s.name)}</a>' for s in sections)
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>gnnplace bench</title><style>{STYLE}</style></head><body>",
        f"<h1>gnnplace bench</h1><p>{escape(note)}</p><p>{links}</p>",
        *map(_section, sections),
        f"<footer>{escape(origin)}</footer></body></html>\n",
    ]
    return "\n".join(parts)


def _section(section: Section) -> str:
    first, *others = [grid.html() for grid in section.grids]
    plots = "".join(f"<figure>{svg}</figure>" for svg in section.plots.values())
    heading = f'<h2 id="{escape(section.name)}">{escape(section.title)}</h2>'
    return "\n".join([heading, first, plots, *others])
