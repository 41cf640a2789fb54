from __future__ import annotations

from gnnplace.bench.best_known import merged
from gnnplace.bench.tables import tables
from tests.bench.rows import row


def found(rows):
    return {grid.title: grid for grid in tables(rows, merged({}, rows), "annealing", "all")}


def test_tables_that_have_nothing_to_say_are_left_out():
    assert list(found([row("a", "heft", 1.0)])) == [
        "all",
        "Share of problems within a factor of the best known",
    ]


def test_failures_are_counted_by_reason():
    rows = [row(p, "heft", None, error="timed out after 1 s") for p in "ab"]
    rows += [row("a", "etf", None, error="x" * 200), row("c", "etf", 1.0, error="")]
    lines = found(rows)["Failed cells"].lines
    assert ["heft", "timed out after 1 s", "2"] in lines
    assert [len(line[1]) for line in lines if line[0] == "etf"] == [80]


def test_runs_are_compared_with_their_predictions():
    rows = [row("a", "random", 1.1 * t, seed=i, predicted=t) for i, t in enumerate((1.0, 2.0, 3.0))]
    rows += [row("b", "random", 1.0, predicted=1.0)]  # too few to say anything
    (line,) = found(rows)["Predicted against run"].lines
    assert line == ["a", "3", "1.000", "9.1%", "-9.1%", "0.0%"]


def test_families_and_pairs_have_their_tables():
    rows = [
        row(p, who, t, family=p, cluster="c")
        for p in ("cnn", "rnn")
        for who, t in (("annealing", 1.0), ("heft", 2.0))
    ]
    all_ = found(rows)
    assert all_["Over best known, by family"].headings == ("placer", "cnn", "rnn")
    assert all_["Over best known, by cluster"].lines == [
        ["annealing 0 s", "1.000"],
        ["heft 0 s", "2.000"],
    ]
    (pair,) = all_["Paired: step time over annealing's at the same budget"].lines
    assert pair == ["heft", "0 s", "2.000", "2", "0", "longer"]
