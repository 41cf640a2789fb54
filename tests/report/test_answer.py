"""One description of an answer is read alike by programs, on a terminal and on a page."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from gnnplace.report.answer import (
    PAGE,
    TERMINAL,
    Answer,
    Column,
    Drawing,
    Lines,
    Table,
    as_csv,
    as_json,
    as_markdown,
    as_page,
    as_terminal,
    data_columns,
    html_parts,
    plain_lines,
    text_table,
)
from gnnplace.report.html import Html
from gnnplace.units import bytes_text, seconds_text


@dataclass(frozen=True)
class Part:
    name: str
    seconds: float | None
    size: float = 0.0
    note: str = ""


ROWS = (
    Part("slow <1>", 2.0, 3e9, "a | b"),
    Part("fast", 1e-5, 5e8),
    Part("lost", None),
)
COLUMNS = [
    *data_columns(Part),
    Column[Part]("part", "name"),
    Column("step", "seconds", seconds_text),
    Column("twice", lambda row: row.seconds and 2 * row.seconds, seconds_text, "twice"),
    Column("memory", "size", bytes_text),
    Column("remarks", "note", words=True),
]
TABLE = Table(COLUMNS, ROWS, title="parts", key="rows")


def printed(answer: Answer) -> str:
    out = Console(file=io.StringIO(), width=100, markup=False)
    for part in as_terminal(answer):
        out.print(part)
    return out.file.getvalue()


def make_plan_answer(*sections, **data) -> Answer:
    return Answer("A title", sections, data)


def test_programs_get_every_key_and_no_text():
    data = as_json(make_plan_answer(TABLE, best=float("inf"), low=(1.0, float("nan"))))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["best"] is None
    assert data["low"] == [1.0, None]
    assert data["rows"][0] == {
        "name": "slow <1>",
        "seconds": 2.0,
        "size": 3e9,
        "note": "a | b",
        "twice": 4.0,
    }
    assert data["rows"][2]["seconds"] is None


def test_rows_are_left_out_by_what_is_unknown_and_found_by_their_first_value():
    table = replace(TABLE, unknown=(None, ""), keyed=True)
    rows = as_json(make_plan_answer(table))["rows"]
    assert list(rows) == ["slow <1>", "fast", "lost"]
    assert rows["lost"] == {"size": 0.0}
    assert as_json(make_plan_answer(replace(table, rows=()))) == {"rows": {}}
    assert as_json(make_plan_answer(replace(table, key=None))) == {}


def test_a_terminal_and_a_page_show_the_same_cells():
    order = replace(TABLE, order=lambda row: (row.seconds is None, row.seconds))
    shown = order.shown()
    assert shown.headings == ["part", "step", "twice", "memory", "remarks"]
    assert [row.name for row in shown.rows] == ["fast", "slow <1>", "lost"]
    assert shown.cells[0] == ["fast", "10 us", "20 us", "500 MB", ""]
    assert shown.cells[2][1:3] == ["-", "-"]
    text = printed(make_plan_answer(order))
    page = as_page(make_plan_answer(order))
    for cell in (*shown.headings, "slow", "3 GB", "a | b"):
        assert cell in text
        assert cell in page
    assert "slow &lt;1&gt;" in page
    assert "<h1>A title</h1>" in page
    assert "10 µs" in page  # a page's script writes it so, too
    assert text.index("fast") < text.index("slow")


def test_most_rows_are_shown_and_the_others_are_counted():
    table = replace(TABLE, max_rows=1)
    assert "and 2 more" in printed(make_plan_answer(table))
    assert "and 2 more" in as_page(make_plan_answer(table))
    assert len(as_json(make_plan_answer(table))["rows"]) == 3
    assert list(plain_lines(replace(table, boxed=False)))[-1] == "  and 2 more"


def test_lines_of_a_table_are_in_columns():
    lines = list(plain_lines(replace(TABLE, boxed=False)))
    assert lines == [
        "parts",
        "  part       step  twice  memory  remarks",
        "  slow <1>    2 s    4 s    3 GB  a | b",
        "  fast      10 us  20 us  500 MB",
        "  lost          -      -     0 B",
    ]
    below = list(plain_lines(replace(TABLE, boxed=False, below=True)))
    assert below[1:4] == [
        "  part       step  twice  memory",
        "  slow <1>    2 s    4 s    3 GB",
        "            a | b",
    ]
    assert len(below) == 6
    unnamed = Table[Part]([Column("", "name")], ROWS, boxed=False)
    assert list(plain_lines(unnamed)) == ["  slow <1>", "  fast", "  lost"]


@pytest.mark.parametrize("only", [TERMINAL, PAGE])
def test_a_section_may_be_of_one_medium(only):
    lines = Lines(["said <once>"], title="Why", only=only)
    answer = make_plan_answer(lines, Drawing(lambda: [Html("<hr/>")]))
    assert ("said <once>" in printed(answer)) == (only == TERMINAL)
    assert ("<h2>Why</h2>" in as_page(answer)) == (only == PAGE)
    assert ("said &lt;once&gt;" in as_page(answer)) == (only == PAGE)
    assert "<hr/>" in as_page(answer)
    assert "hr" not in printed(answer)


def test_bars_and_remarks_are_on_a_page():
    bar = Html("<i>bar</i>")
    table = replace(TABLE, bar=lambda row: bar, note="Bars are long.")
    text = "".join(html_parts(table, level=3))
    assert text.count(bar) == 3
    assert "<h3>parts</h3>" in text
    assert "Bars are long." in text


def test_files_have_plain_values_or_texts():
    assert as_csv(TABLE).splitlines()[:2] == [
        "name,seconds,size,note,twice",
        "slow <1>,2.0,3000000000.0,a | b,4.0",
    ]
    assert as_markdown(TABLE).splitlines()[:3] == [
        "| part | step | twice | memory | remarks |",
        "|---|---:|---:|---:|---|",
        "| slow <1> | 2 s | 4 s | 3 GB | a / b |",
    ]


def test_texts_are_a_table_as_they_are():
    table = text_table("t", ("a", "b"), [("x", "1"), ("y", "2")])
    assert as_csv(table) == "a,b\nx,1\ny,2\n"
    assert table.shown().cells == [["x", "1"], ["y", "2"]]


def test_an_attribute_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="sise"):
        Table[Part]([Column("size", "sise")], ROWS).shown()
