from __future__ import annotations

import pytest

from benchmarks.studies.__main__ import run
from benchmarks.studies.costs import provenance
from benchmarks.studies.costs import study as costs
from benchmarks.studies.costs.study import CostStudy
from benchmarks.studies.orders import study as orders
from tests.bench.small_problems import drawn, few


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(orders, "study_problems", few)
    monkeypatch.setattr(
        orders,
        "training_problems",
        lambda seed, count, family: drawn(seed, 8),
    )


@pytest.mark.usefixtures("_small")
def test_a_study_is_run_and_reported(tmp_path, capsys):
    base = ["orders", "-o", str(tmp_path), "--generations", "1"]
    given = [*base, "--seeds", "2", "--orders", "topological,upward-rank,in-time"]
    assert run([*given, "--parts", "seen"]) == 0
    assert "seed 1: done, 2 of 2" in capsys.readouterr().err
    assert "| layered | 2 |" in (tmp_path / "orders.md").read_text()
    assert (tmp_path / "orders.svg").read_text().startswith("<svg")
    rows = (tmp_path / "orders.jsonl").read_text()
    assert run([*base, "--report"]) == 0
    assert (tmp_path / "orders.jsonl").read_text() == rows


def test_mistakes_are_one_line(tmp_path, capsys):
    assert run(["colours", "-o", str(tmp_path)]) == 2
    assert run(["orders", "-o", str(tmp_path), "--orders", "sideways"]) == 2
    assert run(["orders", "-o", str(tmp_path), "--report"]) == 2
    assert run(["orders"]) == 2
    assert run(["costs", "--report"]) == 2
    assert capsys.readouterr().err.count("\n") == 5


@pytest.mark.campaign
def test_costs_are_studied_and_written(tmp_path, capsys, monkeypatch):
    made = CostStudy([], [], [], {}, [])
    monkeypatch.setattr(costs, "language_rows", lambda progress, unseen: [])
    monkeypatch.setattr(costs, "network_rows", lambda progress: [])
    for name in ("points_left_out", "gpus_left_out", "ops_left_out"):
        monkeypatch.setattr(costs, name, lambda tables: iter(()))
    monkeypatch.setattr(costs, "_pipelines", lambda: made.pipelines)
    monkeypatch.setattr(provenance, "list_workload_names", lambda: ("mlp",))
    monkeypatch.setattr(provenance, "HUGGING_FACE", ("gpt2",))
    assert run(["costs", "--report", "-o", str(tmp_path)]) == 0
    assert "written to" in capsys.readouterr().out
    assert (tmp_path / "costs.md").read_text().startswith("# Predicted times")
