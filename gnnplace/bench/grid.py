"""``Grid``: a table of texts, and the same table for a terminal, for Markdown and for HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from gnnplace.bench.statistics import Interval
from gnnplace.report.html import Html, heading, table


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        title: one line.
        headings: the headings of the columns; the first column is a name, the others are figures.
        lines: the lines of cells, as many as headings.
    """

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]

    def table(self) -> Table:
        """For a terminal."""
        shown = Table(title=self.title, title_justify="left")
        for i, text in enumerate(self.headings):
            shown.add_column(text, justify="right" if i else "left")
        for line in self.lines:
            shown.add_row(*line)
        return shown

    def markdown(self) -> list[str]:
        """Lines of Markdown, with the title as a heading."""
        rule = "|---|" + "---:|" * (len(self.headings) - 1)
        rows = [f"| {' | '.join(line)} |" for line in (self.headings, *self.lines)]
        return [f"### {self.title}", "", rows[0], rule, *rows[1:], ""]

    def html(self) -> Html:
        """A heading and a table."""
        return Html(heading(self.title, level=3) + "\n" + table(self.headings, self.lines))


def interval_text(interval: Interval | None, form: str = ".3f") -> str:
    """A mean with its interval, if it has a width; a dash for none."""
    if interval is None:
        return "-"
    if interval.low == interval.high:
        return f"{interval.mean:{form}}"
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"
