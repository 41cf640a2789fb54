"""`gnnplace plan`: words, JSON, files, exit codes."""

import json

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
    words = ["--given", "pp=2,microbatch_size=2", "--memory-limit", "6e9", "--headroom", "5.9999GB"]
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
