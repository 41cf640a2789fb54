"""The throughput objective in tables, files and commands.

Placements and plans as tables by module.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table as RichTable

import gnnplace
from gnnplace.cli import main as cli
from gnnplace.errors import InputError
from gnnplace.placers.contract import training_chain
from gnnplace.placers.throughput import ThroughputResult
from gnnplace.placing.roster import place
from gnnplace.plans.answers import find_plans
from gnnplace.plans.job import SearchOptions
from gnnplace.problem import write_problem
from gnnplace.report import as_json, as_terminal
from gnnplace.report.tables import (
    check_table,
    describe_intervals,
    placement_table,
    plan_table,
    write_table,
)
from tests.plans.toys import chain, cluster


@pytest.fixture(scope="module")
def results() -> list[object]:
    return list(
        gnnplace.compare_intervals(training_chain(), ["single", "heft"], budget=0.3)
    )


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
    answer = describe_intervals(training_chain(), given)  # type: ignore[arg-type]
    rows = as_json(answer)["rows"]
    assert rows[-1] == {"placer": "broken", "error": "no"}
    assert rows[0]["interval"] > 0
    assert "error" not in rows[0]
    [table] = as_terminal(answer)
    assert isinstance(table, RichTable)
    assert table.row_count == 5
    assert gnnplace.place(training_chain(), placer="single").get_file_keys() == {}


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


def test_compare_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One object with a row a placer."""
    write_problem(tmp_path / "p.json", training_chain())
    arguments = [
        "compare",
        str(tmp_path / "p.json"),
        "--objective",
        "throughput",
        "--json",
    ]
    assert cli.run([*arguments, "--placers", "single", "--budget", "0.2"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["placer"] for row in rows] == [
        "throughput",
        "contiguous-split",
        "single",
    ]


def test_every_op_and_second_of_a_placement_is_in_its_table(tmp_path):
    """Ops, seconds and state sum to those of the problem; CSV and Markdown have the same cells."""
    problem = training_chain()
    placement = place(problem, placer="heft").placement
    table = placement_table(problem, placement)
    headings, rows = [column.key for column in table.columns], table.rows
    write_table(tmp_path / "t.csv", table)
    write_table(tmp_path / "t.md", table)
    with open(tmp_path / "t.csv", newline="") as file:
        read = list(csv.reader(file))
    assert read == [headings, *rows]
    assert sum(int(row[2]) for row in rows) == problem.num_ops
    times = problem.times[np.arange(problem.num_ops), placement.device]
    assert sum(float(row[3]) for row in rows) == pytest.approx(times.sum())
    assert sum(float(row[4]) for row in rows) == problem.state.sum()
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == rows[0]
    assert len(lines) == len(rows) + 2


def test_every_module_of_a_plan_has_a_row():
    """A row for each module, with its stage and devices."""
    plan = find_plans(
        chain(np.random.default_rng(0), count=4), cluster(2), SearchOptions(budget=0.0)
    )[0]
    rows = plan_table(plan).rows
    assert [row[0] for row in rows] == ["s0", "s1", "s2", "s3"]
    assert {name for row in rows for name in row[2].split()} <= {"gpu:0", "gpu:1"}


def test_other_files_are_refused():
    """The name says what kind of table it is."""
    with pytest.raises(InputError, match=r"\.md or \.csv"):
        check_table("t.html")
