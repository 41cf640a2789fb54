"""The throughput objective in tables, files and commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gnnplace
from gnnplace.cli import main as cli
from gnnplace.errors import InputError
from gnnplace.placers.contract import training_chain
from gnnplace.placers.throughput import ThroughputResult
from gnnplace.problem import write_problem
from gnnplace.report.intervals import interval_keys, interval_row, interval_table


@pytest.fixture(scope="module")
def results() -> list[object]:
    return list(gnnplace.compare_intervals(training_chain(), ["single", "heft"], budget=0.3))


def test_throughput_is_compared_with_what_others_come_to(results: list[object]) -> None:
    """Its interval is the least; all have one."""
    found = {r.placer: r for r in results if isinstance(r, ThroughputResult)}
    assert list(found) == ["throughput", "contiguous-split", "single", "heft"]
    least = min(result.interval for result in found.values())
    assert found["throughput"].interval == least
    assert found["single"].interval == pytest.approx(found["single"].step_time)


def test_rows_and_table(results: list[object]) -> None:
    """Errors stand in their rows."""
    given = [*results, ("broken", InputError("no"))]
    assert interval_row(given[-1]) == {"placer": "broken", "error": "no"}  # type: ignore[arg-type]
    assert interval_row(given[0])["interval"] > 0  # type: ignore[arg-type]
    assert interval_table(given, "x").row_count == 5  # type: ignore[arg-type]
    assert interval_keys(gnnplace.place(training_chain(), placer="single")) == {}


def test_place_writes_step_time_and_interval(tmp_path: Path) -> None:
    """The file keeps the step's meaning and reads back; the interval is under x- keys."""
    problem = training_chain()
    write_problem(tmp_path / "p.json", problem)
    arguments = ["place", str(tmp_path / "p.json"), "-o", str(tmp_path / "o.json")]
    assert cli.run([*arguments, "--objective", "throughput", "--budget", "0.3"]) == 0
    data = json.loads((tmp_path / "o.json").read_text())
    placement, _ = gnnplace.read_placement_for(tmp_path / "o.json", problem)
    simulated = gnnplace.simulate(problem, placement).step_time
    assert data["predicted_step_time"] == pytest.approx(simulated)
    assert data["x-objective"] == "throughput"
    assert 0 < data["x-interval-bound"] <= data["x-interval"] <= simulated


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--placer", "heft"], "best, contiguous"),
        (["--microbatches", "auto"], "give a number"),
        (["--order", "topological"], "no option 'order'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line."""
    write_problem(tmp_path / "p.json", training_chain())
    arguments = ["place", str(tmp_path / "p.json"), "-o", str(tmp_path / "o.json")]
    assert cli.run([*arguments, "--objective", "throughput", *more]) == 2
    assert said in capsys.readouterr().err


def test_compare_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with a row a placer."""
    write_problem(tmp_path / "p.json", training_chain())
    arguments = ["compare", str(tmp_path / "p.json"), "--objective", "throughput", "--json"]
    assert cli.run([*arguments, "--placers", "single", "--budget", "0.2"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["placer"] for row in rows] == ["throughput", "contiguous-split", "single"]
