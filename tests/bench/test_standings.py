from __future__ import annotations

import math

import pytest

from gnnplace.bench.standings import (
    merge_best_known,
    read_best_known,
    standings,
    write_best_known,
)
from gnnplace.errors import FormatError
from tests.bench.rows import row


def found(rows, rival="annealing"):
    return {
        (s.placer, s.budget): s
        for s in standings(rows, merge_best_known({}, rows), rival)
    }


def portfolio():
    """Problems a, b with a gap to the best known of half, c without one."""
    rows = [row(p, "portfolio", 2.0) for p in "ab"] + [row("c", "portfolio", 1.005)]
    return rows + [row(p, "annealing", 1.0, budget=1.0) for p in "abc"]


def test_the_gap_closed_is_between_portfolio_and_best_known():
    mine = [
        row("a", "learned", 1.5),
        row("b", "learned", 2.5),
        row("c", "learned", 1.0),
    ]
    all_ = found(portfolio() + mine)
    learned = all_["learned", 0.0]
    assert learned.closed.mean == pytest.approx((0.5 - 0.5) / 2)
    assert learned.closed.count == 2
    assert learned.ties_apart == 1
    assert learned.pooled == pytest.approx(math.log(2 / 1.5 * 2 / 2.5) / math.log(4))
    assert learned.ratio.mean == pytest.approx((1.5 * 2.5) ** (1 / 3))
    assert all_["portfolio", 0.0].closed.mean == 0.0
    assert all_["annealing", 1.0].closed.mean == 1.0
    assert all_["annealing", 1.0].ratio.mean == 1.0


def test_wins_are_counted_at_the_same_budget():
    mine = [
        row(p, "learned", t, budget=1.0)
        for p, t in (("a", 0.9), ("b", 1.2), ("c", 1.005))
    ]
    other = [row("a", "learned", 0.1, budget=9.0)]
    all_ = found(portfolio() + mine + other)
    learned = all_["learned", 1.0]
    assert (learned.wins, learned.losses, learned.ties) == (1, 1, 1)
    alone = all_["learned", 9.0]
    assert (alone.wins, alone.losses, alone.ties) == (0, 0, 0)
    rivals = found(portfolio() + mine, rival="learned")["annealing", 1.0]
    assert (rivals.wins, rivals.losses, rivals.ties) == (1, 1, 1)


def test_what_is_infeasible_is_counted_and_loses():
    mine = [
        row("a", "learned", None, budget=1.0),
        row("b", "learned", 1.0, budget=1.0),
        row("z", "learned", 1.0, budget=1.0),  # nobody else tried it
    ]
    learned = found(portfolio() + mine)["learned", 1.0]
    assert (learned.rows, learned.infeasible) == (3, 1)
    assert (learned.wins, learned.losses, learned.ties) == (0, 1, 1)
    assert learned.ratio.count == 2
    nothing = found([*portfolio(), row("a", "lost", None)])["lost", 0.0]
    assert nothing.ratio is None
    assert nothing.closed is None
    assert math.isnan(nothing.pooled)


def test_seeds_of_a_problem_count_as_one():
    mine = [row("a", "learned", t, seed=i) for i, t in enumerate((1.0, 4.0))]
    learned = found([*portfolio(), *mine])["learned", 0.0]
    assert learned.ratio.count == 1
    assert learned.ratio.mean == pytest.approx(2.0)


def test_problems_that_changed_are_not_compared():
    rows = [*portfolio(), row("a", "learned", 8.0, digest="1:changed", budget=1.0)]
    learned = found(rows)["learned", 1.0]
    assert learned.ratio.mean == pytest.approx(1.0)
    assert learned.closed is None
    assert (learned.wins, learned.losses, learned.ties) == (0, 0, 0)


def test_the_minimum_of_all_rows_is_kept_with_where_it_is_from(tmp_path):
    path = tmp_path / "best.json"
    assert read_best_known(path) == {}
    first = merge_best_known(
        {}, [row("a", "heft", 2.0), row("a", "single", 3.0), row('b "x"', "heft", None)]
    )
    write_best_known(path, first)
    again = [
        row("a", "annealing", 1.5, budget=10.0, seed=4),
        row('b "x"', "single", 7.0),
    ]
    known = merge_best_known(read_best_known(path), again)
    write_best_known(path, known)
    assert read_best_known(path) == known
    best = known["a", "1:d"]
    assert (best.step_time, best.placer, best.budget, best.seed) == (
        1.5,
        "annealing",
        10.0,
        4,
    )
    assert known['b "x"', "1:d"].step_time == 7.0
    assert path.read_text().count("\n") == 4  # a problem a line


def test_a_problem_that_changed_starts_anew(tmp_path):
    path = tmp_path / "best.json"
    known = merge_best_known(
        {}, [row("a", "heft", 2.0), row("a", "heft", 5.0, digest="1:e")]
    )
    assert {key: best.step_time for key, best in known.items()} == {
        ("a", "1:d"): 2.0,
        ("a", "1:e"): 5.0,
    }
    write_best_known(path, known)
    assert [best.step_time for best in read_best_known(path).values()] == [5.0]


def test_malformed_files_are_named(tmp_path):
    path = tmp_path / "best.json"
    path.write_text(
        '{"format": "gnnplace-best-known", "version": 1, "problems": {"a": {"step_time": -1}}}'
    )
    with pytest.raises(FormatError, match=r"best\.json: problems\.a\.step_time"):
        read_best_known(path)
