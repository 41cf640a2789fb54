"""The headline kind: placements, recipes and plans of one step, in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnnplace.bench.tables import headline_grids
from gnnplace.cli.main import run

SUITE = """
name: tiny
kind: joint
problems:
  - {model: "mlp?batch=4096&width=512&depth=2", cluster: pcie-a100-2, microbatches: 2}
constructions: [single, one-device, ddp, zero-3, chain, min-cut, heft]
placers: [plan]
budgets: [0.5]
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of one model on two devices; capturing it three times takes two seconds."""
    folder = tmp_path_factory.mktemp("joint")
    (folder / "suite.yaml").write_text(SUITE)
    assert run(["bench", str(folder / "suite.yaml"), "-o", str(folder / "r")]) == 0
    lines = (folder / "r" / "tiny.jsonl").read_text().splitlines()
    return {row["placer"]: row for row in map(json.loads, lines)}


def test_every_method_has_a_row_of_the_same_problem(rows):
    assert len(rows) == 8
    assert {row["error"] for row in rows.values()} == {""}
    assert len({row["digest"] for row in rows.values()}) == 1
    assert all(len(row["peak_memory"]) == 2 for row in rows.values())
    assert all(row["processor_seconds"] < 60 for row in rows.values())


def test_one_device_takes_as_long_by_both_clocks(rows):
    assert rows["one-device"]["step_time"] == pytest.approx(rows["single"]["step_time"], rel=0.02)


def test_searches_are_no_worse_than_what_they_search_among(rows):
    for name in ("one-device", "ddp", "zero-3", "chain"):
        assert rows["plan"]["step_time"] <= rows[name]["step_time"] * (1 + 1e-9)


def test_data_parallelism_sums_gradients(rows):
    """By hand: half the compute at least, and never below it."""
    assert rows["ddp"]["step_time"] > rows["one-device"]["step_time"] / 2


def test_the_table_has_a_line_a_method_and_a_ratio_over_data_parallelism(rows):
    (grid,) = headline_grids(list(rows.values()))
    assert grid.title == "Step times on pcie-a100-2, ms, predicted"
    told = {line[0]: line for line in grid.lines}
    assert told["ddp"][-1] == "1.000"
    ratio = rows["single"]["step_time"] / rows["ddp"]["step_time"]
    assert told["single"][-1] == f"{ratio:.3f}"
    assert told["single"][1] == f"{1e3 * rows['single']['step_time']:.4g}"


def test_a_method_without_an_answer_is_a_row(tmp_path: Path) -> None:
    text = SUITE.replace("mlp?batch=4096&width=512&depth=2", "nothing:here").replace("zero-3, ", "")
    (tmp_path / "suite.yaml").write_text(text)
    assert run(["bench", str(tmp_path / "suite.yaml"), "-o", str(tmp_path / "r")]) == 0
    rows = map(json.loads, (tmp_path / "r" / "tiny.jsonl").read_text().splitlines())
    assert all("cannot import 'nothing'" in row["error"] for row in rows)
