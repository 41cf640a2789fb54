from __future__ import annotations

import json

import pytest

from gnnplace.bench import orders
from gnnplace.bench.orders_problems import StudyProblem, families
from gnnplace.cli import run
from gnnplace.zoo.random_families import random_problem


def few(part, **more):
    """Small problems of a part's first two families; of random ones, whatever they are called."""
    return [
        StudyProblem(
            family, "own", random_problem("layered", seed, ops=(30, 40), clusters=("own",))
        )
        for family in families(part)[:2]
        for seed in (1, 2)
    ]


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(orders, "study_problems", few)
    monkeypatch.setattr(orders, "check_problems", lambda: few("seen")[:2])
    monkeypatch.setattr(
        orders,
        "training_problems",
        lambda seed, count, family: [
            random_problem("layered", seed + i, ops=(20, 30)) for i in range(8)
        ],
    )


@pytest.mark.usefixtures("_small")
def test_a_study_is_run_and_reported(tmp_path, capsys):
    base = ["study", "orders", "-o", str(tmp_path), "--generations", "1"]
    given = [*base, "--seeds", "2", "--orders", "topological,upward-rank,in-time"]
    assert run([*given, "--parts", "seen"]) == 0
    assert "seed 1: done, 2 of 2" in capsys.readouterr().err
    assert "| layered | 2 |" in (tmp_path / "orders.md").read_text()
    assert "Recommended orders against auto" in (tmp_path / "orders.md").read_text()
    assert (tmp_path / "orders.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "orders.json").read_text())["format"] == "gnnplace-orders"
    rows = (tmp_path / "orders.jsonl").read_text()
    assert run([*base, "--report"]) == 0
    assert (tmp_path / "orders.jsonl").read_text() == rows


def test_mistakes_are_one_line(tmp_path, capsys):
    assert run(["study", "colours", "-o", str(tmp_path)]) == 2
    assert run(["study", "orders", "-o", str(tmp_path), "--orders", "sideways"]) == 2
    assert run(["study", "orders", "-o", str(tmp_path), "--report"]) == 2
    assert capsys.readouterr().err.count("\n") == 3
