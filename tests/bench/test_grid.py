from __future__ import annotations

import io

from rich.console import Console

from gnnplace.bench.grid import Grid, interval_text
from gnnplace.bench.statistics import Interval

GRID = Grid("Times of <all>", ("placer", "ratio"), [("heft & co", "1.5"), ("etf", "2.0")])


def test_one_table_in_three_ways():
    out = Console(file=io.StringIO(), width=80)
    out.print(GRID.table())
    assert "heft & co" in out.file.getvalue()
    assert GRID.markdown() == [
        "### Times of <all>",
        "",
        "| placer | ratio |",
        "|---|---:|",
        "| heft & co | 1.5 |",
        "| etf | 2.0 |",
        "",
    ]
    html = GRID.html()
    assert "<h3>Times of &lt;all&gt;</h3>" in html
    assert html.count("<tr>") == 3
    assert "<td>heft &amp; co</td><td>1.5</td>" in html


def test_intervals_as_text():
    assert interval_text(Interval(1.0, 0.9, 1.25, 3)) == "1.000 [0.900, 1.250]"
    assert interval_text(Interval(0.5, 0.25, 0.75, 3), ".0%") == "50% [25%, 75%]"
    assert interval_text(Interval(2.0, 2.0, 2.0, 1)) == "2.000"
    assert interval_text(None) == "-"
