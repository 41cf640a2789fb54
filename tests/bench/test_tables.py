from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from gnnplace.bench.standings import merge_best_known
from gnnplace.bench.statistics import Interval
from gnnplace.bench.tables import (
    BETTER,
    NOISE,
    WORSE,
    breakdown,
    interval_text,
    pairings,
    performance_profiles,
    tables,
)
from gnnplace.report import as_markdown, boxed, html_parts, text_table
from tests.bench.rows import row


def found(rows):
    return {
        grid.title: grid
        for grid in tables(rows, merge_best_known({}, rows), "annealing", "all")
    }


def test_tables_that_have_nothing_to_say_are_left_out():
    assert list(found([row("a", "heft", 1.0)])) == [
        "all; against annealing",
        "Share of problems within a factor of the best known",
    ]


def test_failures_are_counted_by_reason():
    rows = [row(p, "heft", None, error="timed out after 1 s") for p in "ab"]
    rows += [row("a", "etf", None, error="x" * 200), row("c", "etf", 1.0, error="")]
    lines = found(rows)["Failed cells"].rows
    assert ["heft", "timed out after 1 s", "2"] in lines
    assert [len(line[1]) for line in lines if line[0] == "etf"] == [80]


def test_runs_are_compared_with_their_predictions():
    rows = [
        row("a", "random", 1.1 * t, seed=i, predicted=t)
        for i, t in enumerate((1.0, 2.0, 3.0))
    ]
    rows += [row("b", "random", 1.0, predicted=1.0)]  # too few to say anything
    (line,) = found(rows)["Predicted against run"].rows
    assert line == ["a", "3", "1.000", "9.1%", "-9.1%", "0.0%"]


def test_families_and_pairs_have_their_tables():
    rows = [
        row(p, who, t, family=p, cluster="c")
        for p in ("cnn", "rnn")
        for who, t in (("annealing", 1.0), ("heft", 2.0))
    ]
    all_ = found(rows)
    assert all_["Over best known, by family"].shown().headings == [
        "placer",
        "cnn",
        "rnn",
    ]
    assert all_["Over best known, by cluster"].rows == [
        ["annealing 0 s", "1.000"],
        ["heft 0 s", "2.000"],
    ]
    (pair,) = all_["Paired: step time over annealing's at the same budget"].rows
    assert pair == ["heft", "0 s", "2.000", "2", "0", "longer"]


def test_every_family_has_its_own_mean_against_the_best_of_all():
    rows = [
        row("a", "mine", 2.0, family="cnn"),
        row("a", "best", 1.0, family="cnn"),
        row("b", "mine", 8.0, family="cnn"),
        row("b", "best", 1.0, family="cnn"),
        row("c", "mine", 3.0, family="rnn"),
        row("d", "mine", None, family="rnn"),
        row("old", "mine", 7.0),
    ]
    found = breakdown(rows, merge_best_known({}, rows), "family")
    assert list(found) == ["cnn", "rnn"]
    assert found["cnn"]["mine", 0.0].mean == pytest.approx(4.0)
    assert found["cnn"]["mine", 0.0].count == 2
    assert found["rnn"]["mine", 0.0].mean == pytest.approx(1.0)
    assert breakdown(rows, merge_best_known({}, rows), "cluster") == {}


def test_seeds_are_paired_and_the_rest_meets_the_mean():
    rows = [row("a", "annealing", t, seed=i) for i, t in enumerate((1.0, 4.0))]
    rows += [row("a", "mine", t, seed=i) for i, t in enumerate((2.0, 8.0))]
    rows += [row("a", "once", 2.0, seed=9)]
    found = {pairing.placer: pairing for pairing in pairings(rows)}
    assert found["mine"].ratio.mean == pytest.approx(2.0)
    assert found["mine"].ratio.low == found["mine"].ratio.high == pytest.approx(2.0)
    assert found["once"].ratio.mean == pytest.approx(1.0)


def test_only_the_same_budget_and_the_same_problem_are_compared():
    rows = [
        row("a", "annealing", 1.0, budget=1.0),
        row("b", "annealing", 1.0, budget=1.0),
    ]
    rows += [row("a", "mine", 0.5, budget=1.0), row("c", "mine", 9.0, budget=1.0)]
    rows += [row("b", "mine", None, budget=1.0), row("a", "mine", 9.0, budget=2.0)]
    rows += [row("a", "mine", 9.0, budget=1.0, digest="1:changed")]
    (found,) = pairings(rows)
    assert (found.budget, found.ratio.mean, found.ratio.count) == (1.0, 0.5, 1)
    assert found.unpaired == 3  # b, c and the changed a


def test_the_verdict_is_what_the_interval_says():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(40):
        rows.append(row(str(i), "annealing", 1.0))
        rows.append(row(str(i), "same", float(np.exp(rng.normal(0, 0.3)))))
        rows.append(row(str(i), "good", float(np.exp(rng.normal(-0.5, 0.3)))))
        rows.append(row(str(i), "bad", float(np.exp(rng.normal(0.5, 0.3)))))
    verdicts = {found.placer: found.verdict for found in pairings(rows)}
    assert verdicts == {"same": NOISE, "good": BETTER, "bad": WORSE}
    assert [found.placer for found in pairings(rows)] == ["good", "same", "bad"]
    assert pairings(rows, rival="nobody") == []


GRID = text_table(
    "Times of <all>", ("placer", "ratio"), [("heft & co", "1.5"), ("etf", "2.0")]
)


def test_one_table_in_three_ways():
    out = Console(file=io.StringIO(), width=80)
    out.print(*boxed(GRID))
    assert "heft & co" in out.file.getvalue()
    assert as_markdown(GRID).splitlines() == [
        "| placer | ratio |",
        "|---|---:|",
        "| heft & co | 1.5 |",
        "| etf | 2.0 |",
    ]
    html = "".join(html_parts(GRID, level=3))
    assert "<h3>Times of &lt;all&gt;</h3>" in html
    assert html.count("<tr>") == 3
    assert "<td>heft &amp; co</td><td>1.5</td>" in html


def test_intervals_as_text():
    assert interval_text(Interval(1.0, 0.9, 1.25, 3)) == "1.000 [0.900, 1.250]"
    assert interval_text(Interval(0.5, 0.25, 0.75, 3), ".0%") == "50% [25%, 75%]"
    assert interval_text(Interval(2.0, 2.0, 2.0, 1)) == "2.000"
    assert interval_text(None) == "-"


def test_shares_count_what_is_infeasible_as_never_solved():
    rows = [row(p, "best", 1.0) for p in "abcd"]
    rows += [row("a", "mine", 1.0), row("b", "mine", 1.2), row("c", "mine", 3.0)]
    rows += [row("d", "mine", None)]
    best, mine = performance_profiles(rows, merge_best_known({}, rows))
    assert (best.placer, best.share(1.0)) == ("best", 1.0)
    assert mine.tried == 4
    assert [mine.share(factor) for factor in (1.0, 1.19, 1.2, 2.99, 3.0, 1e9)] == [
        0.25,
        0.25,
        0.5,
        0.5,
        0.75,
        0.75,
    ]


def test_seeds_of_a_problem_count_as_one_problem():
    rows = [row("a", "mine", 1.0, seed=0), row("a", "mine", 4.0, seed=1)]
    (mine,) = performance_profiles(rows, merge_best_known({}, rows))
    assert (mine.tried, mine.ratios) == (1, (2.0,))
