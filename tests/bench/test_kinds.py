from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from gnnplace.bench.rows import read_rows
from gnnplace.bench.runner import run_suite
from gnnplace.bench.standings import merge_best_known, was_run
from gnnplace.cli.main import run

EXECUTE = """
name: run
kind: execute
mode: emulated
problems: [{model: "mlp?batch=8", cluster: "cpu:2", groups: 20}]
placers: [single, random, round-robin]
seeds: [0]
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> tuple[Path, list[dict], str]:
    """The folder, rows and summary of a suite that was executed."""
    folder = tmp_path_factory.mktemp("executed")
    return folder, *rows_of(folder, EXECUTE)


def rows_of(folder: Path, text: str) -> tuple[list[dict], str]:
    (folder / "suite.yaml").write_text(text)
    out = Console(file=io.StringIO(), width=160)
    path = str(folder / "suite.yaml")
    assert run_suite(path, str(folder / "r"), out, lambda line: None) == 0
    (rows,) = (folder / "r").glob("*.jsonl")
    return read_rows(rows), out.file.getvalue()


def test_executed_cells_tell_what_was_predicted_and_which_clock_ran(executed):
    _, rows, summary = executed
    assert [row["error"] for row in rows] == [""] * 3
    for row in rows:
        assert row["clock"] == "emulated"
        assert row["predicted"] > 0
        assert 0 < row["step_time"] <= row["typical"]
        assert row["lower_bound"] is None  # of predictions it would be
    assert "Predicted against run" in summary
    assert all(was_run(problem) for problem in merge_best_known({}, rows))


def test_runs_are_not_recorded_as_best_known(executed):
    folder, *_ = executed
    best = folder / "best.json"
    rows = str(folder / "r" / "run.jsonl")
    assert (
        run(
            ["bench", "summary", rows, "--best-known", str(best), "--record", "--dirty"]
        )
        == 0
    )
    assert "run" not in best.read_text().partition("problems")[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            EXECUTE.replace('model: "mlp?batch=8"', "family: grid"),
            "kind execute needs models",
        ),
        (EXECUTE.replace("emulated", "imagined"), "mode"),
        (EXECUTE.replace("execute", "guess"), "kind"),
    ],
)
def test_suites_of_a_kind_are_checked(tmp_path, text, message, capsys):
    (tmp_path / "suite.yaml").write_text(text)
    assert run(["bench", str(tmp_path / "suite.yaml"), "-o", str(tmp_path / "r")]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
