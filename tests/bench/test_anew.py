"""All suites anew: what is left and what it takes, runs, and what replaces committed rows."""

import json

import pytest

from benchmarks import anew

SUITE = """
name: two
problems: [{family: layered, seed: 1, ops: [20, 30]}]
constructions: [single]
placers: [annealing]
budgets: [0.05]
"""
OLD = {"suite": "two", "problem": "family=layered seed=1 ops=20-30", "seed": 0, "step_time": 1.0,
       "feasible": True, "error": ""}  # fmt: skip


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Suites and results of one suite, whose constructions took nine seconds."""
    suites, results = tmp_path / "suites", tmp_path / "results"
    (results / "two").mkdir(parents=True)
    suites.mkdir()
    (suites / "two.yaml").write_text(SUITE)
    row = {**OLD, "placer": "single", "budget": 0.0, "seconds": 9.0}
    (results / "two" / "two.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(anew, "SUITES", suites)
    monkeypatch.setattr(anew, "RESULTS", results)
    monkeypatch.setattr(anew, "check_clean", lambda: None)
    return tmp_path


def test_hours_are_those_of_committed_rows_and_else_budgets(places):
    left = anew.left_of(places / "suites" / "two.yaml", places / "new")
    assert (left.cells, left.of) == (2, 2)
    assert left.seconds == pytest.approx(9.0 + 0.05)


def test_a_run_is_told_beforehand_and_complete_rows_take_the_place_of_old_ones(
    places, capsys
):
    out = ["-o", str(places / "new")]
    assert anew.run(["--take", *out]) == 2
    assert "two: 2 of 2 cells have no row yet" in capsys.readouterr().err
    assert anew.run(["--run", *out]) == 0
    assert "2 of     2 cells to run" in capsys.readouterr().out
    assert anew.run(["--take", *out]) == 0
    assert "0 of     2 cells to run" in capsys.readouterr().out
    made = sorted(path.name for path in (places / "results" / "two").iterdir())
    assert {"summary.md", "summary.html", "two.jsonl"} <= set(made)
    rows = (places / "results" / "two" / "two.jsonl").read_text().splitlines()
    assert {json.loads(line)["placer"] for line in rows} == {"single", "annealing"}


def test_unknown_suites_are_refused(places, capsys):
    assert anew.run(["three"]) == 2
    assert "suite 'three': there is none" in capsys.readouterr().err
