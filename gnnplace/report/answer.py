"""One description of an answer, and its renderers: JSON, a terminal, a page, CSV and Markdown.

The module of an answer lists its values, each with a name for programs (`key`), a heading for
people (`heading`) and a format for people (`text`). All rendering is done here. What costs time and
not every command asks for (a page, a table by module, a trace, a picture) is a function there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from gnnplace.files import csv_text
from gnnplace.report import html
from gnnplace.report.html import Html

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import JustifyMethod
    from rich.table import Table as RichTable

    from gnnplace.report.pictures import Figure
    from gnnplace.report.timeline import Timeline

Item = TypeVar("Item")

TERMINAL = "terminal"
PAGE = "page"


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A value that every row of a table has.

    Attributes:
        heading: What people call it; None: they do not see it.
        value: The row's attribute, or a function that returns the value of a row; in seconds or
            bytes where it has a unit.
        text: Formats a value for people. One that is None is a dash.
        key: What programs call it; None: they do not get it.
        words: Whether it holds words rather than figures: aligned left, folded where it is long.
    """

    heading: str | None
    value: str | Callable[[Item], object]
    text: Callable[[Any], str] = str
    key: str | None = None
    words: bool = False

    def get(self, row: Item) -> object:
        """Return the value of a row."""
        if isinstance(self.value, str):
            return getattr(row, self.value)
        return self.value(row)


@dataclass(frozen=True)
class Table(Generic[Item]):
    """Rows that have the same values.

    Attributes:
        columns: The first one that people see is a name.
        rows: The rows, in the order of programs.
        title: Above it.
        key: What programs call its rows; None: they do not get them.
        keyed: Whether programs get rows by the first value of each, not as a list.
        unknown: Values that a row does without in JSON.
        order: Sort key of the rows for people; None: that of programs.
        max_rows: Rows that people see at most.
        best: The row that stands out.
        bar: Draws a row's bar on a page.
        note: A remark below it on a page.
        boxed: Whether a terminal draws lines around it and folds what is too wide.
        below: Whether a terminal has the last column in a line of its own below each row, where
            there are no lines around it.
        only: The one of `TERMINAL` and `PAGE` that shows it; empty: both do.
    """

    columns: Sequence[Column[Item]]
    rows: Sequence[Item]
    title: str = ""
    key: str | None = None
    keyed: bool = False
    unknown: tuple[object, ...] = ()
    order: Callable[[Item], Any] | None = None
    max_rows: int | None = None
    best: Item | None = None
    bar: Callable[[Item], Html] | None = None
    note: str = ""
    boxed: bool = True
    below: bool = False
    only: str = ""

    def shown(self) -> Shown[Item]:
        """Return what people see."""
        rows = list(self.rows)
        if self.order is not None:
            rows.sort(key=self.order)
        rows = rows[: self.max_rows]
        headings = []
        is_words = []
        texts: list[list[str]] = []
        for column in self.columns:
            if column.heading is None:
                continue
            headings.append(column.heading)
            is_words.append(column.words)
            texts.append([])
            for row in rows:
                value = column.get(row)
                texts[-1].append("-" if value is None else column.text(value))
        cells = list(map(list, zip(*texts, strict=True)))
        num_hidden = len(self.rows) - len(rows)
        return Shown(
            headings=headings,
            is_words=is_words,
            rows=rows,
            cells=cells,
            remainder=f"and {num_hidden} more" if num_hidden else "",
        )


@dataclass(frozen=True)
class Shown(Generic[Item]):
    """The part of a table that people see, as text.

    Attributes:
        headings: The headings of its columns.
        is_words: Whether each column holds words.
        rows: The rows, in the order of people.
        cells: The texts of each.
        remainder: How many rows they do not see, in words; empty where they see all.
    """

    headings: list[str]
    is_words: list[bool]
    rows: list[Item]
    cells: list[list[str]]
    remainder: str


@dataclass(frozen=True)
class Lines:
    """Sentences, a line or a paragraph each.

    Attributes:
        lines: The sentences, or a function that makes them once somebody reads them.
        title: Above them, on a page.
        only: The one of `TERMINAL` and `PAGE` that shows them; empty: both do.
    """

    lines: Sequence[str] | Callable[[], Sequence[str]]
    title: str = ""
    only: str = ""

    def read(self) -> Sequence[str]:
        """Return the sentences."""
        if callable(self.lines):
            return self.lines()
        return self.lines


@dataclass(frozen=True)
class Drawing:
    """A part that only a page can show: pictures, cards, a timeline.

    Attributes:
        draw: Makes it, once a page is asked for.
    """

    draw: Callable[[], Sequence[Html]]
    only: str = PAGE


@dataclass(frozen=True)
class TerminalTable:
    """A table that only a terminal shows, in a form of its own.

    Attributes:
        draw: Makes it, once it is printed.
    """

    draw: Callable[[], RichTable]
    only: str = TERMINAL


Section: TypeAlias = Table[Any] | Lines | Drawing | TerminalTable
TextTable: TypeAlias = Table[Sequence[str]]


@dataclass(frozen=True)
class Answer:
    """The answer of a command.

    Attributes:
        title: The title of its page.
        sections: The sections in the order in which people read them.
        data: What programs get beside the rows of tables, by key; or a function that returns it, or
            a list that is the whole of what programs get.
        facts: One line below the page's title.
        page: Makes the text of a page that shows more than the sections; None: the page has these.
        table: Makes the table that is written to a file of its own; None: there is none.
        steps: Makes the steps that a trace shows, side by side; None: there is no trace.
        picture: Draws the picture that is written to a file of its own; None: there is none.
    """

    title: str
    sections: Sequence[Section]
    data: Mapping[str, object] | Callable[[], Mapping[str, object] | list[Any]] = field(
        default_factory=dict
    )
    facts: str = ""
    page: Callable[[], str] | None = None
    table: Callable[[], Table[Any]] | None = None
    steps: Callable[[], Sequence[Timeline]] | None = None
    picture: Callable[[], Figure] | None = None


def data_columns(record: type[DataclassInstance]) -> list[Column[Any]]:
    """Return a column for each field of a dataclass, for programs alone."""
    names = [entry.name for entry in dataclasses.fields(record)]
    return [Column(None, name, key=name) for name in names]


def text_table(
    title: str,
    headings: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    words: Sequence[str] = (),
) -> TextTable:
    """Return a table of texts, whose keys are its headings.

    Args:
        title: Above it.
        headings: The headings of its columns.
        lines: The texts of each row.
        words: Headings of columns that hold words.
    """
    columns: list[Column[Sequence[str]]] = []
    for index, heading in enumerate(headings):
        is_words = heading in words
        get = itemgetter(index)
        columns.append(Column(heading, get, key=heading, words=is_words))
    return Table(columns, lines, title)


def as_json(answer: Answer) -> dict[str, Any] | list[Any]:
    """Return an answer as plain data; a number that is not finite is None."""
    plain = answer.data() if callable(answer.data) else answer.data
    if isinstance(plain, list):
        return [_plain(item) for item in plain]
    data: dict[str, Any] = {}
    for key, value in plain.items():
        data[key] = _plain(value)
    for section in answer.sections:
        if not isinstance(section, Table) or section.key is None:
            continue
        rows = table_data(section)
        if not section.keyed:
            data[section.key] = rows
            continue
        by_name = {}
        for row in rows:
            name, *_ = row
            by_name[row.pop(name)] = row
        data[section.key] = by_name
    return data


def table_data(table: Table[Any]) -> list[dict[str, Any]]:
    """Return the rows of a table as plain data."""
    rows = []
    for row in table.rows:
        values = {}
        for column in table.columns:
            if column.key is None:
                continue
            value = column.get(row)
            if value not in table.unknown:
                values[column.key] = _plain(value)
        rows.append(values)
    return rows


def _plain(value: object) -> object:
    """Return a value as JSON has it: records as objects, numbers that are not finite as null."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def as_terminal(answer: Answer) -> Iterator[str | RichTable]:
    """Yield an answer as lines and tables for a terminal."""
    for section in answer.sections:
        if section.only == PAGE:
            continue
        if isinstance(section, TerminalTable):
            yield section.draw()
        elif isinstance(section, Table) and section.boxed:
            yield from boxed(section)
        else:
            yield from plain_lines(section)


def boxed(table: Table[Any]) -> Iterator[str | RichTable]:
    """Yield a table for a terminal with lines around it, and how many more rows there are."""
    from rich.table import Table as RichTable

    shown = table.shown()
    title = table.title or None
    drawn = RichTable(title=title, title_justify="left", header_style="bold")
    columns = zip(shown.headings, shown.is_words, strict=True)
    for index, (heading, is_words) in enumerate(columns):
        is_left = is_words or index == 0
        justify: JustifyMethod = "left" if is_left else "right"
        drawn.add_column(heading, justify=justify, overflow="fold")
    for row, cells in zip(shown.rows, shown.cells, strict=True):
        is_best = table.best is not None and row is table.best
        drawn.add_row(*cells, style="bold green" if is_best else None)
    yield drawn
    if shown.remainder:
        yield shown.remainder


def plain_lines(section: Section) -> Iterator[str]:
    """Yield a section as lines of a terminal that are never folded."""
    if isinstance(section, Lines):
        yield from section.read()
    elif isinstance(section, Table):
        yield from _aligned(section)


def _aligned(table: Table[Any]) -> Iterator[str]:
    """Yield a table's title, headings if there are any, and rows, in columns."""
    shown = table.shown()
    lines = list(shown.cells)
    if any(shown.headings):
        lines.insert(0, shown.headings)
    widths = []
    for column in zip(*lines, strict=True):
        widths.append(max(map(len, column)))
    if table.title:
        yield table.title
    for line in lines:
        cells = []
        for index, cell in enumerate(line):
            if shown.is_words[index] or index == 0:
                cells.append(cell.ljust(widths[index]))
            else:
                cells.append(cell.rjust(widths[index]))
        last = ""
        if table.below:
            last = cells.pop().rstrip()
        yield f"  {'  '.join(cells).rstrip()}"
        if last and line is not shown.headings:
            yield f"  {'':{widths[0]}}  {last}"
    if shown.remainder:
        yield f"  {shown.remainder}"


def as_page(answer: Answer) -> str:
    """Return the text of an answer's page."""
    if answer.page is not None:
        return answer.page()
    parts: list[Html] = []
    for section in answer.sections:
        if section.only != TERMINAL:
            parts += html_parts(section)
    return html.page(answer.title, parts, facts=answer.facts)


def html_parts(section: Section, level: int = 2) -> list[Html]:
    """Return a section as parts of a page.

    Args:
        section: The section.
        level: The level of its heading, from 1 to 6.
    """
    if isinstance(section, TerminalTable):
        return []
    if isinstance(section, Drawing):
        return list(section.draw())
    parts = []
    if section.title:
        parts.append(html.heading(section.title, level))
    if isinstance(section, Lines):
        parts += map(html.paragraph, section.read())
        return parts
    shown = section.shown()
    bars: list[Html] = []
    if section.bar is not None:
        bars = list(map(section.bar, shown.rows))
    lines = []
    for cells in shown.cells:
        lines.append([cell.replace(" us", " µs") for cell in cells])
    has_words = shown.is_words[-1]
    parts.append(html.table(shown.headings, lines, bars=bars, words=has_words))
    for remark in (shown.remainder, section.note):
        if remark:
            parts.append(html.hint(remark))
    return parts


def as_csv(table: Table[Any]) -> str:
    """Return a table as CSV: keys, then plain values."""
    columns = [column for column in table.columns if column.key is not None]
    lines: list[list[object]] = [[column.key for column in columns]]
    for row in table.rows:
        lines.append([column.get(row) for column in columns])
    return csv_text(lines)


def as_markdown(table: Table[Any]) -> str:
    """Return a table as Markdown: headings, then texts; figures to the right."""
    shown = table.shown()
    head, *lines = (
        f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n"
        for line in (shown.headings, *shown.cells)
    )
    rules = ["---|" if is_words else "---:|" for is_words in shown.is_words[1:]]
    return f"{head}|---|{''.join(rules)}\n{''.join(lines)}"
