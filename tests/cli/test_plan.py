"""`gnnplace plan`: words, JSON, files, exit codes."""

import json
from pathlib import Path

import pytest

from gnnplace.cli.main import run
from gnnplace.plans.reading import read_plan

MODEL = "gpt2?layers=2&width=64&heads=4&vocabulary=128&length=32&batch=8"
GIVEN = ["plan", MODEL, "--cluster", "nvlink-a100-8"]


def test_a_plan_is_written_read_and_given_again(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    assert run([*GIVEN, "--budget", "1", "-o", path]) == 0
    assert "a step, predicted" in capsys.readouterr().out
    plan = read_plan(path)
    assert run([*GIVEN, "--given", path, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["feasible"] is True
    assert abs(answer["step_time"] / plan.step_time - 1.0) < 1e-9
    views = ["-o", str(tmp_path / "p.html"), "--trace", str(tmp_path / "t.json")]
    assert run(["report", path, *views]) == 0
    passes = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" and event["name"] == "0F0" for event in passes)


def test_a_plan_in_words_that_does_not_fit_is_an_answer(capsys):
    words = [
        "--given",
        "pp=2,microbatch_size=2",
        "--memory-limit",
        "6e9",
        "--headroom",
        "5.9999GB",
    ]
    assert run([*GIVEN, *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["feasible"] is False
    assert "lacks" in answer["reason"]


def test_nothing_that_fits_is_exit_3(capsys):
    assert run([*GIVEN, "--memory-limit", "6e9", "--headroom", "5.9999GB"]) == 3
    assert "nothing fits" in capsys.readouterr().out


def test_bad_words_are_one_line_and_exit_2(capsys):
    assert run([*GIVEN, "--given", "dp=3"]) == 2
    assert "no multiple of 3 replicas" in capsys.readouterr().err


def test_every_road_refuses_an_edited_plan_and_diff_says_what_moved(tmp_path, capsys):
    """It takes some seconds: five commands, four of which capture the model."""
    one, two, odd = (str(tmp_path / f"{name}.json") for name in ("one", "two", "odd"))
    given = ["plan", MODEL, "--cluster", "cpu:2", "--given"]
    assert run([*given, "pp=2,microbatch_size=4", "-o", one]) == 0
    data = json.loads(Path(one).read_text())
    moved = data["stages"][1]["members"].pop(0)  # a call goes to the stage before
    data["stages"][0]["members"].append(moved)
    Path(odd).write_text(json.dumps(data))
    assert run([*given, "dp=2,microbatch_size=4", "-o", two]) == 0
    capsys.readouterr()
    assert run(["diff", MODEL, one, two]) == 0
    assert "modules moved" in capsys.readouterr().out
    for words in (["diff", MODEL, one, odd], ["execute", MODEL, odd], [*given, odd]):
        assert run(words) == 2
        assert "plan: stages[0].modules: " in capsys.readouterr().err.splitlines()[-1]
    Path(odd).write_text(json.dumps({**data, "ranks": [0, 2]}))
    for words in (
        ["report", odd, "-o", str(tmp_path / "p.html")],
        ["diff", MODEL, odd, two],
    ):
        assert run(words) == 2
        assert f"{odd}: ranks: [0, 2]: must be numbered" in capsys.readouterr().err


def test_the_head_says_what_is_trained_and_what_was_a_default(capsys):
    words = ["--given", "dp=8,zero=1,microbatch_size=1", "--quiet"]
    assert run(["plan", "smollm2-135m", "--cluster", "8xH100", *words]) == 0
    head = capsys.readouterr().out.splitlines()[1]
    assert head.startswith(
        "  134,515,008 parameters, batch 256 x 4,096 tokens, bf16-mixed, adamw "
        "(batch, length, precision, optimizer by default); priced by the model's sizes as pytorch"
    )


def test_prices_are_told_and_must_be_of_the_kinds_of_the_cluster(capsys):
    plan = ["plan", "smollm2-135m", "--cluster", "8xH100", "--quiet"]
    plan += ["--given", "dp=8,zero=1,microbatch_size=1"]
    assert run([*plan, "--price", "h100=2.5", "--tokens", "1T", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["cost"]["step"] == pytest.approx(8 * 2.5 * answer["step_time"] / 3600)
    assert answer["cost"]["run"] == pytest.approx(
        1e3 * answer["cost"]["billion_tokens"]
    )
    assert run([*plan, "--price", "a100=1"]) == 2
    assert "has none of 'h100'" in capsys.readouterr().err
    assert run([*plan, "--goal", "cost"]) == 2
    assert "needs --price" in capsys.readouterr().err


def test_several_clusters_are_compared_by_time_or_cost(capsys):
    plan = ["plan", "smollm2-135m", "--cluster", "4xH100,4xA100-80", "--batch", "64"]
    plan += ["--budget", "0", "--quiet", "--json"]
    prices = ["--price", "h100=90", "--price", "a100-80=1"]
    assert run([*plan, *prices]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["4xH100", "4xA100-80"]
    assert run([*plan, *prices, "--goal", "cost"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert list(answers) == ["4xA100-80", "4xH100"]
    assert answers["4xH100"]["cost"]["step"] > answers["4xA100-80"]["cost"]["step"]
    assert run([*plan, "--given", "dp=4"]) == 2
    assert "--given: is of one cluster" in capsys.readouterr().err
