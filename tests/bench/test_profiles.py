from __future__ import annotations

from gnnplace.bench.best_known import merged
from gnnplace.bench.profiles import performance_profiles
from tests.bench.rows import row


def test_shares_count_what_is_infeasible_as_never_solved():
    rows = [row(p, "best", 1.0) for p in "abcd"]
    rows += [row("a", "mine", 1.0), row("b", "mine", 1.2), row("c", "mine", 3.0)]
    rows += [row("d", "mine", None)]
    best, mine = performance_profiles(rows, merged({}, rows))
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
    (mine,) = performance_profiles(rows, merged({}, rows))
    assert (mine.tried, mine.ratios) == (1, (2.0,))
