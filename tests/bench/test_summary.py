from __future__ import annotations

import io
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from gnnplace.bench.standings import merge_best_known, standings
from gnnplace.bench.summary import (
    Section,
    SummaryOptions,
    page,
    print_standings,
    profile_plot,
    quality_plot,
    split_rows,
    summarise,
)
from gnnplace.bench.tables import performance_profiles
from gnnplace.errors import InputError
from gnnplace.report import text_table
from gnnplace.report.pictures import svg
from tests.bench.rows import row
from tests.report.drawn import texts, tooltips


def test_unseen_problems_stand_apart_as_well_and_clocks_do():
    rows = [
        row("a", "heft", 1.0),
        row("b", "heft", 1.0),
        row("b", "gnn", 1.0, seen=True),
    ]
    rows += [row("c", "heft", 1.0, suite="run@1", clock="measured")]
    rows += [row("d", "heft", None, suite="run@1")]
    assert {title: len(part) for title, part in split_rows(rows).items()} == {
        "s@1": 3,
        "s@1-held-out": 1,
        "run@1": 2,
    }
    rows += [row("c", "etf", 1.0, suite="run@1", clock="emulated")]
    assert {title: len(part) for title, part in split_rows(rows).items()} == {
        "s@1": 3,
        "s@1-held-out": 1,
        "run@1-measured": 1,
        "run@1-emulated": 1,
        "run@1-failed": 1,
    }


def test_wide_tables_are_in_files_alone(tmp_path):
    rows = [row(str(i), "heft", 1.0, family=f"family-{i}") for i in range(12)]
    out = Console(file=io.StringIO(), width=200)
    print_standings(rows, out, folder=str(tmp_path / "tables"))
    printed = out.file.getvalue()
    assert "12 problems" in printed
    assert "step times predicted" in printed
    assert "by family" not in printed
    text = (tmp_path / "tables" / "summary.md").read_text()
    assert "by family" in text
    assert "12 rows of commits c" in text
    assert "12 rows of commits c" in (tmp_path / "tables" / "summary.html").read_text()


def test_the_page_holds_all_and_needs_nothing():
    grids = [
        text_table("first", ("a", "b"), [("x", "1")]),
        text_table("second", ("a",), [("<y>",)]),
    ]
    plots = {"seconds": '<svg xmlns="http://www.w3.org/2000/svg"></svg>'}
    sections = [Section("small", "small: 3 problems", grids, plots)]
    text = page(sections, "how to <read>", "5 rows")
    plain = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert ElementTree.fromstring(plain).find("head/title").text == "gnnplace bench"
    assert text.index("first") < text.index("<svg") < text.index("second")
    assert "how to &lt;read&gt;" in text
    assert "&lt;y&gt;" in text
    assert '<h2 id="small">' in text
    assert '<a href="#small">' in text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert set(re.findall(r"https?://[^\"< ]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_plot_has_a_line_a_placer_and_a_dot_a_budget():
    rows = [
        row("a", placer, time, budget=budget, seconds=max(budget, 0.01))
        for placer, budget, time in (
            ("heft", 0.0, 1.5),
            ("learned <&>", 0.1, 1.2),
            ("learned <&>", 1.0, 1.0),
            ("far off", 1.0, 50.0),
            ("lost", 1.0, None),
        )
    ]
    figure = quality_plot(standings(rows, merge_best_known({}, rows)), "a & b")
    [plot] = figure.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in plot.lines}
    assert list(lines) == ["heft", "learned <&>"]
    assert np.allclose(lines["heft"], [[0.01, 1.5]])
    assert np.allclose(lines["learned <&>"], [[0.1, 1.2], [1.0, 1.0]])
    assert (plot.get_xscale(), plot.get_yscale()) == ("log", "linear")
    assert plot.get_ylim() == (1.0, 1.5)
    text = svg(figure)
    assert len(text) < 20_000
    assert tooltips(text) == [
        "heft, 0 s: 1.500",
        "learned <&>, 0.1 s: 1.200",
        "learned <&>, 1 s: 1.000",
    ]
    assert {"a & b", "heft", "learned <&>", "0.01", "0.1", "1"} <= set(texts(text))


def test_the_shade_is_the_interval_over_problems():
    rows = [row(p, "best", 1.0) for p in "abc"]
    rows += [
        row(p, "mine", t, budget=1.0)
        for p, t in zip("abc", (1.1, 1.3, 1.6), strict=True)
    ]
    found = standings(rows, merge_best_known({}, rows))
    [mine] = [standing for standing in found if standing.placer == "mine"]
    [plot] = quality_plot(found, "t").axes
    heights = {float(y) for y in plot.collections[-1].get_paths()[0].vertices[:, 1]}
    assert heights == {mine.ratio.low, mine.ratio.high}
    assert plot.get_ylim()[1] == mine.ratio.high


def test_nothing_to_show_is_still_a_picture():
    assert "empty" in texts(svg(quality_plot([], "empty")))


def test_profiles_rise_and_show_the_largest_budget():
    rows = [row(p, "best", 1.0) for p in "abc"]
    for p, time in zip("abc", (1.0, 1.5, 9.0), strict=True):
        rows += [
            row(p, "mine <&>", time, budget=1.0),
            row(p, "mine <&>", 9.0, budget=0.1),
        ]
    figure = profile_plot(performance_profiles(rows, merge_best_known({}, rows)), "t")
    [plot] = figure.axes
    assert tooltips(svg(figure)) == [
        "best, 0 s: 100% within 5 %",
        "mine <&>, 1 s: 33% within 5 %",
    ]
    best, mine = plot.lines
    assert (best.get_label(), mine.get_label()) == ("best 0 s", "mine <&> 1 s")
    assert mine.get_drawstyle() == "steps-post"
    # One problem within 1, two within 1.5, never three.
    assert np.allclose(mine.get_xydata(), [[1.0, 1 / 3], [1.5, 2 / 3], [2.0, 2 / 3]])
    assert np.allclose(best.get_ydata(), 1.0)
    assert (plot.get_xlim(), plot.get_ylim()) == ((1.0, 2.0), (0.0, 1.0))


def test_no_profile_is_still_a_picture():
    assert "empty" in texts(svg(profile_plot([], "empty")))


def test_versions_of_a_suite_stand_apart():
    rows = [row("a", "heft", 1.0), row("a", "heft", 2.0, suite="s@2", digest="1:e")]
    assert {title: len(part) for title, part in split_rows(rows).items()} == {
        "s@1": 1,
        "s@2": 1,
    }


def test_a_problem_that_says_two_things_is_refused():
    rows = [row("a", "random", 9.0, digest="1:e"), row("a", "heft", 1.0, suite="s@1")]
    with pytest.raises(
        InputError, match=r"s@1: a: .* 1:e of commit c and 1:d of commit c; leave"
    ):
        print_standings(rows, Console(file=io.StringIO()))


def test_rows_of_changed_code_count_where_they_are_asked_for(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [row("a", "heft", 1.0), row("b", "heft", 1.0, commit="0123456789abc+")]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    with pytest.raises(
        InputError, match="line 2: a row of code that was changed after 0123456789"
    ):
        summarise([str(path)], Console(file=io.StringIO()))
    assert (
        summarise([str(path)], Console(file=io.StringIO()), SummaryOptions(dirty=True))
        == 0
    )
