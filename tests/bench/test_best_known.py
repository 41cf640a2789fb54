from __future__ import annotations

import pytest

from gnnplace.bench.best_known import merged, read_best_known, write_best_known
from gnnplace.errors import FormatError
from tests.bench.rows import row


def test_the_minimum_of_all_rows_is_kept_with_where_it_is_from(tmp_path):
    path = tmp_path / "best.json"
    assert read_best_known(path) == {}
    first = merged({}, [row("a", "heft", 2.0), row("a", "single", 3.0), row('b "x"', "heft", None)])
    write_best_known(path, first)
    again = [row("a", "annealing", 1.5, budget=10.0, seed=4), row('b "x"', "single", 7.0)]
    known = merged(read_best_known(path), again)
    write_best_known(path, known)
    assert read_best_known(path) == known
    best = known["a", "1:d"]
    assert (best.step_time, best.placer, best.budget, best.seed) == (1.5, "annealing", 10.0, 4)
    assert known['b "x"', "1:d"].step_time == 7.0
    assert path.read_text().count("\n") == 4  # a problem a line


def test_a_problem_that_changed_starts_anew(tmp_path):
    path = tmp_path / "best.json"
    known = merged({}, [row("a", "heft", 2.0), row("a", "heft", 5.0, digest="1:e")])
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
