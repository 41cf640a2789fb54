"""``gnnplace shard MODEL``: splits that DTensor can run, and their plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnnplace.cli.main import run

SMALL = "mlp?depth=1&width=64&batch=8"


def make_plan_answer(arguments, capsys):
    assert run(arguments) == 0
    return json.loads(capsys.readouterr().out)


def failure(arguments, capsys):
    code = run(arguments)
    error = capsys.readouterr().err.strip().splitlines()[-1]
    return code, error


def test_an_executable_strategy_in_words(capsys, tmp_path):
    arguments = ["shard", SMALL, "--executable", "--devices", "4", "--flops", "1e6"]
    plan = str(tmp_path / "plan.json")
    assert run([*arguments, "-o", plan]) == 0
    text = capsys.readouterr().out
    assert "on a mesh of 2 x 2 devices: predicted" in text
    assert "over 4" in text
    assert "data parallelism" in text
    assert "proven best" in text
    assert json.loads(Path(plan).read_text())["format"] == "gnnplace-plan"


def test_its_tables_are_a_sharding_problem(capsys, tmp_path):
    tables = str(tmp_path / "tables.json")
    arguments = [
        "shard",
        SMALL,
        "--executable",
        "--devices",
        "4",
        "--tables",
        tables,
        "--json",
    ]
    mine = make_plan_answer(arguments, capsys)
    theirs = make_plan_answer(["shard", tables, "--json"], capsys)
    assert theirs["cost"] == pytest.approx(mine["cost"])
    assert mine["cost"] == pytest.approx(
        sum(
            mine["predicted"][k]
            for k in ("compute", "reduction", "gradient", "resharding")
        )
    )
    assert set(mine["layers"]) >= {"blocks.0.up", "head"}


def test_executable_is_the_same_answer(capsys):
    plain = make_plan_answer(["shard", SMALL, "--devices", "4", "--json"], capsys)
    runs = make_plan_answer(
        ["shard", SMALL, "--devices", "4", "--executable", "--json"], capsys
    )
    assert plain["exact"] is True
    assert plain | {"seconds": 0} == runs | {"seconds": 0}


def test_a_goal_is_a_plan_too(capsys, tmp_path):
    """The least memory within a time is written as a plan, whose parts add up to its cost."""
    plan = str(tmp_path / "plan.json")
    arguments = ["shard", SMALL, "--devices", "2", "--goal", "memory", "--time-limit"]
    answer = make_plan_answer([*arguments, "1", "--json", "-o", plan], capsys)
    parts = json.loads(Path(plan).read_text())["parts"]
    assert sum(parts.values()) == pytest.approx(answer["cost"])
    fastest = make_plan_answer(["shard", SMALL, "--devices", "2", "--json"], capsys)
    assert answer["memory"] < fastest["memory"]


def test_a_run_is_checked_and_measured(capsys, tmp_path):
    plan = str(tmp_path / "plan.json")
    assert (
        run(["shard", SMALL, "--devices", "2", "--bandwidth", "1e9", "-o", plan]) == 0
    )
    capsys.readouterr()
    found = make_plan_answer(
        ["execute", SMALL, plan, "--steps", "1", "--train", "2", "--json"], capsys
    )
    assert found["verified"] is True
    assert found["step_time"] > 0


def test_faults_are_one_line(capsys, tmp_path):
    assert "zoo name" in failure(["shard", "nothing", "--executable"], capsys)[1]
    assert "--plan" in failure(["shard", SMALL, "--plan", "x.json"], capsys)[1]
    assert (
        "--plan"
        in failure(["shard", SMALL, "--executable", "--plan", "x.json"], capsys)[1]
    )
    assert (
        "does not exist"
        in failure(
            ["shard", SMALL, "--executable", "-o", str(tmp_path / "no" / "plan.json")],
            capsys,
        )[1]
    )
    plan = str(tmp_path / "plan.json")
    run(["shard", SMALL, "--executable", "-o", plan])
    code, error = failure(["execute", "moe", plan, "--steps", "1"], capsys)
    assert code in (1, 2)
    assert "plan" in error
