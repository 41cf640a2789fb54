"""Commands as a user types them, in this process; ``tests/test_demo.py`` runs the whole road."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gnnplace.cli.commands import COMMANDS, ROWS
from gnnplace.cli.main import make_parser, run
from gnnplace.placers import contract
from gnnplace.problem import problem_to_data, read_problem, write_problem
from gnnplace.problem.placement import read_placement
from tests.problem.formats.test_pipedream import SMALL

BUILT_IN = ("help",)


@pytest.fixture
def problem_path(tmp_path):
    path = tmp_path / "problem.json"
    write_problem(path, contract.training_chain())
    return str(path)


def failure(arguments, capsys):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    # Progress.
    told = [line for line in captured.err.splitlines() if not line.startswith("  ")]
    assert len(told) == 1, captured.err
    assert "Traceback" not in captured.err
    return code, told[0] + "\n"


def test_place_then_simulate(problem_path, tmp_path, capsys):
    output = str(tmp_path / "placement.json")
    assert (
        run(
            [
                "place",
                problem_path,
                "--placer",
                "portfolio",
                "--budget",
                "0",
                "-o",
                output,
            ]
        )
        == 0
    )
    assert "gap" in capsys.readouterr().out
    assert run(["simulate", problem_path, output, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"step_time", "peak_memory", "feasible"}
    assert answer["feasible"] is True
    placement = read_placement(output, read_problem(problem_path))
    assert answer["step_time"] == placement.predicted_step_time
    assert set(answer["peak_memory"]) == {"d0", "d1", "d2"}
    assert run(["simulate", problem_path, output]) == 0
    assert "predicted step time" in capsys.readouterr().out


def test_a_placement_of_micro_batches_simulates_against_the_whole_problem(
    problem_path, tmp_path, capsys
):
    output = str(tmp_path / "p.json")
    arguments = ["place", problem_path, "--placer", "contiguous", "--microbatches", "4"]
    assert run([*arguments, "-o", output]) == 0
    capsys.readouterr()
    assert run(["simulate", problem_path, output, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (
        answer["step_time"]
        == json.loads(Path(output).read_text())["predicted_step_time"]
    )


def test_infeasible_is_an_answer_of_simulate_and_exit_3_of_place(tmp_path, capsys):
    tight = contract.training_chain(memory=8.0)
    path = tmp_path / "tight.json"
    write_problem(path, tight)
    placement = tmp_path / "p.json"
    device = {name: "d0" for name in tight.graph.names}
    data = {"format": "gnnplace-placement", "version": 1, "device": device}
    placement.write_text(json.dumps(data))
    assert run(["simulate", str(path), str(placement), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["feasible"] is False
    assert answer["step_time"] > 0
    code, message = failure(
        ["place", path, "--placer", "best", "-o", tmp_path / "q"], capsys
    )
    assert code == 3
    assert "memory" in message or "feasible" in message
    assert not (tmp_path / "q").exists()


def test_a_placement_that_cannot_run_has_no_step_time(tmp_path, capsys):
    chain = contract.training_chain()
    apart = replace(chain, cluster=replace(chain.cluster, links=()))
    write_problem(tmp_path / "p.json", apart)
    device = {name: f"d{i % 2}" for i, name in enumerate(apart.graph.names)}
    data = {"format": "gnnplace-placement", "version": 1, "device": device}
    (tmp_path / "q.json").write_text(json.dumps(data))
    assert (
        run(["simulate", str(tmp_path / "p.json"), str(tmp_path / "q.json"), "--json"])
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["step_time"] is None
    assert answer["feasible"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plase"], "'plase': unknown"),
        (["simulate", "nowhere.json", "p.json"], "nowhere.json: cannot be read"),
        (["place", "PROBLEM", "-o", "missing-folder/p.json"], "does not exist"),
        (["place", "PROBLEM", "-o", "OUT", "--placer", "magic"], "'magic': unknown"),
        (["place", "PROBLEM", "-o", "OUT", "--budget", "soon"], "budget"),
        (["place", "PROBLEM", "-o", "OUT", "--budget", "-1"], "negative"),
        (["place", "PROBLEM", "-o", "OUT", "--order", "x"], "order 'x'"),
        (
            ["place", "PROBLEM", "-o", "OUT", "--order", "random", "--placer", "heft"],
            "option of learned",
        ),
        (["place", "PROBLEM", "-o", "OUT", "--objective", "beauty"], "objective"),
        (["place", "PROBLEM", "-o", "OUT", "--microbatches", "0"], "microbatches"),
        (["place", "PROBLEM", "-o", "OUT", "--cluster", "nvlink-a100-4"], "'a100'"),
        (
            ["place", "nosuchmodel", "-o", "OUT", "--cluster", "nvlink-a100-4"],
            "nosuchmodel",
        ),
        (["place", "PROBLEM"], "output"),
        (["convert", "PROBLEM", "--from", "pipedream", "-o", "OUT"], "line 1"),
        (
            ["convert", "PROBLEM", "--from", "excel", "-o", "OUT"],
            "--from excel: unknown",
        ),
        (["bench", "PROBLEM", "-o", "OUT"], "problem.json"),
        (["train", "fly"], "train fly: unknown"),
        (["train", "fit", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "fit", "--model", "Nope", "--data", "ProblemDataModule"], "Nope"),
        (["train", "fit", "--config", "EMPTY"], "--config: must be keys and values"),
        (
            ["train", "fit", "--trainer.max_epochs", "x"],
            "max_epochs: x: must be a whole number",
        ),
        (
            ["train", "fit", "--data", "no.such.Data"],
            "--data: class 'no.such.Data': no module 'no' is here",
        ),
        (
            ["plan", "mlp", "--cluster", "EMPTY"],
            "empty.yaml: top level: must be keys and values",
        ),
        (
            ["plan", "mlp", "--cluster", "cpu:2", "--environment", "x"],
            "--environment x: is searched",
        ),
        (
            ["execute", "mlp", "p.json", "--steps", "1e3"],
            "--steps 1000.0: must be a whole number",
        ),
        (
            ["execute", "mlp", "p.json", "--timeout", "nan"],
            "nan: must be a finite number",
        ),
        (["compare", "PROBLEM", "--placers", ","], "no name stands between the commas"),
        (["bench", "summary", "EMPTY"], "no file has a row"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments, message, problem_path, tmp_path, capsys
):
    output = tmp_path / "out.json"
    (tmp_path / "empty.yaml").touch()
    real = {"PROBLEM": problem_path, "OUT": output, "EMPTY": tmp_path / "empty.yaml"}
    code, line = failure(
        [real.get(argument, argument) for argument in arguments], capsys
    )
    assert code == 2
    assert message in line
    assert not output.exists()


def test_convert_compare_report(tmp_path, capsys):
    profile, problem = tmp_path / "net.txt", str(tmp_path / "net.json")
    profile.write_text(SMALL)
    cluster = ["--cluster", "nvlink-a100-2"]
    assert (
        run(["convert", str(profile), "--from", "pipedream", *cluster, "-o", problem])
        == 0
    )
    assert (
        run(["compare", problem, "--budget", "0", "--placers", "single,heft,best"]) == 0
    )
    text = capsys.readouterr().out
    assert "lower bound" in text
    assert "heft" in text
    assert (
        run(["compare", problem, "--budget", "0", "--placers", "single", "--json"]) == 0
    )
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["placer"] == "single"
    placed = [str(tmp_path / f"{name}.json") for name in ("heft", "single")]
    for name, path in zip(("heft", "single"), placed, strict=True):
        assert run(["place", problem, "--placer", name, "-o", path]) == 0
    page, trace = tmp_path / "r.html", tmp_path / "t.json"
    assert (
        run(["report", problem, *placed, "-o", str(page), "--trace", str(trace)]) == 0
    )
    assert "net on 2 devices" in page.read_text()
    for given in (
        ["place", problem, "-o", placed[0], "--budget", "0"],
        ["simulate", problem],
    ):
        trace.unlink()
        more = placed[:1] if given[0] == "simulate" else ["--placer", "heft"]
        chakra = ["--chakra", str(tmp_path / f"{given[0]}-traces")]
        assert run([*given, *more, *chakra, "--trace", str(trace)]) == 0
        assert (tmp_path / f"{given[0]}-traces" / "rank.1.json").is_file()
        assert json.loads(trace.read_text())["traceEvents"]


def test_a_budget_of_zero_means_one_decode_of_the_policy(problem_path, tmp_path):
    output = str(tmp_path / "p.json")
    assert (
        run(
            [
                "place",
                problem_path,
                "--placer",
                "learned",
                "--budget",
                "0",
                "-o",
                output,
            ]
        )
        == 0
    )
    placement = read_placement(output, read_problem(problem_path))
    assert placement.placer == "learned"
    assert np.isfinite(placement.predicted_step_time)


def test_a_file_that_is_another_problem_is_refused(problem_path, tmp_path, capsys):
    output = str(tmp_path / "p.json")
    assert run(["place", problem_path, "--placer", "heft", "-o", output]) == 0
    capsys.readouterr()
    data = problem_to_data(contract.training_chain())
    data["tensors"][0]["bytes"] = 12345
    (tmp_path / "other.json").write_text(json.dumps(data))
    code, line = failure(["simulate", tmp_path / "other.json", output], capsys)
    assert code == 2
    assert "another problem" in line


def test_help(capsys):
    assert run(["--help"]) == 0
    assert "gnnplace demo" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        run(["place", "--help"])
    assert stopped.value.code == 0


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"train"}))
def test_every_command_has_help_of_whole_sentences(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        run([name, "--help"])
    assert stopped.value.code == 0
    assert ROWS["commands"][name]["summary"] in " ".join(
        capsys.readouterr().out.split()
    )
    parser = make_parser(name)
    for action in parser._actions:
        told = action.help or ""
        assert (
            told.rstrip(" )").endswith((".", "(default: %(default)s"))
            or action.dest in BUILT_IN
        )


def test_the_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gnnplace 0.")


def test_the_environment_says_where_caches_are(capsys):
    assert run(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch"].startswith("2.")
    assert found["machine"]["cores"] >= 1
    assert "measurements.db" in found["caches"]["store of measured steps"]
    assert run(["env"]) == 0


def test_only_numbas_files_count_as_compiled_kernels(tmp_path, monkeypatch, capsys):
    for name, size in (("a.nbi", 1), ("a.1.nbc", 2), ("a.py", 4), ("warm-0", 8)):
        (tmp_path / name).write_bytes(b"0" * size)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert run(["env", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["caches"]["compiled kernels"]
    assert said.startswith(f"{tmp_path} (2 files, 3 bytes, ")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"
        ),
    ],
)
def test_no_memory_is_one_line(error, monkeypatch, capsys):
    def none_left(arguments):
        raise error

    monkeypatch.setattr("gnnplace.cli.main._run", none_left)
    assert run(["env"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("gnnplace: out of memory")
    assert len(told.splitlines()) == 1


def test_quiet_hides_progress_alone(problem_path, tmp_path, capsys):
    output = str(tmp_path / "p.json")
    assert run(["compare", problem_path, "--placers", "single", "--budget", "0"]) == 0
    assert "placing with single" in capsys.readouterr().err
    given = ["compare", problem_path, "--placers", "single", "--budget", "0", "--quiet"]
    assert run(given) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "lower bound" in told.out
    assert not Path(output).exists()


def test_a_long_search_says_what_begins(problem_path, tmp_path, capsys):
    base = ["place", problem_path, "--placer", "single", "-o", str(tmp_path / "p.json")]
    assert run([*base, "--budget", "0.1"]) == 0
    assert "placing" not in capsys.readouterr().err
    assert run([*base, "--budget", "60"]) == 0
    assert "devices with single: 60 s of search" in capsys.readouterr().err
    assert run([*base, "--budget", "60", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_options_of_a_placer_are_the_same_behind_its_name(problem_path, tmp_path):
    output = str(tmp_path / "p.json")
    base = ["place", problem_path, "--budget", "0", "-o", output]
    assert run([*base, "--placer", "exact", "--workers", "2"]) == 0
    assert run([*base, "--placer", "exact?workers=2"]) == 0
    assert run([*base, "--placer", "exact?workers=0"]) == 2
    assert run([*base, "--placer", "exact?workers"]) == 2
    assert run([*base, "--placer", "exact?threads=2"]) == 2


def test_a_placement_of_a_problem_file_keeps_how_its_model_was_captured(tmp_path):
    problem, placement = str(tmp_path / "p.json"), str(tmp_path / "q.json")
    given = [
        "mlp",
        "--cluster",
        "nvlink-a100-2",
        "--groups",
        "20",
        "--optimizer",
        "adamw",
    ]
    assert run(["profile", *given, "-o", problem]) == 0
    place = ["place", problem, "--placer", "single", "--budget", "0", "-o", placement]
    assert run(place) == 0
    kept = json.loads(Path(placement).read_text())["x-capture"]
    assert (kept["groups"], kept["optimizer"], kept["microbatches"]) == (20, "adamw", 1)
    assert run([*place, "--microbatches", "2"]) == 0
    assert json.loads(Path(placement).read_text())["x-capture"]["microbatches"] == 2


def test_a_problem_that_says_nothing_of_a_model_makes_a_placement_that_says_nothing(
    problem_path, tmp_path
):
    output = tmp_path / "q.json"
    place = [
        "place",
        problem_path,
        "--placer",
        "single",
        "--budget",
        "0",
        "-o",
        str(output),
    ]
    assert run(place) == 0
    assert "x-capture" not in json.loads(output.read_text())


@pytest.mark.parametrize("command", [["plan", "--help"], ["shard", "--help"]])
def test_a_terminal_that_is_not_utf8_gets_help(command):
    """Letters that Latin-1 lacks are replaced."""
    done = subprocess.run(
        [sys.executable, "-m", "gnnplace", *command],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout
