"""Constraints and questions as a user types them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gnnplace.cli.main import run
from gnnplace.placers import contract
from gnnplace.problem import read_problem, write_problem


@pytest.fixture
def problem_path(tmp_path):
    chain = contract.training_chain()
    modules = tuple(f"layers.{name[1]}" for name in chain.graph.names)
    path = tmp_path / "problem.json"
    write_problem(path, replace(chain, module=modules))
    return str(path)


def place(path, output, *more):
    return run(
        ["place", path, "--placer", "heft", "--budget", "0", "-o", str(output), *more]
    )


def test_flags_and_file_are_obeyed_and_told(problem_path, tmp_path, capsys):
    """A pin, a forbid, two layers together: printed, obeyed, and simulated against the file."""
    (tmp_path / "my.yaml").write_text("forbid: {layers.1: d0}\n")
    output, table = tmp_path / "placement.json", tmp_path / "placement.csv"
    flags = ["--pin", "layers.0=d1", "--together", "layers.2,layers.3"]
    more = ["--constraints", str(tmp_path / "my.yaml"), "--table", str(table)]
    assert place(problem_path, output, *flags, *more) == 0
    captured = capsys.readouterr()
    assert "pin layers.0=d1: 1 module, 3 ops" in captured.err
    assert "together layers.2,layers.3: 2 modules, 6 ops" in captured.err
    assert "devices used: " in captured.out
    assert "next: " in captured.out
    device = json.loads(output.read_text())["device"]
    assert device["f0"] == device["b0"] == device["u0"] == "d1"
    assert device["f1"] != "d0"
    assert device["f2"] == device["f3"]
    assert table.read_text().startswith(
        "module,device,ops,seconds,bytes of state\nlayers.0,d1,3,"
    )
    assert run(["simulate", problem_path, str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["feasible"]


def test_explain_and_diff(problem_path, tmp_path, capsys):
    """The path's shares and the devices' seconds sum up; what moved is said."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert (
        place(problem_path, first, "--pin", "layers.*=d0", "--forbid", "layers.5=d2")
        == 0
    )
    assert place(problem_path, second, "--pin", "layers.0=d1") == 0
    capsys.readouterr()
    assert run(["explain", problem_path, str(first), "layers.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["critical_path"]["shares"].values()) == pytest.approx(1.0)
    for spent in found["devices"].values():
        assert sum(spent.values()) == pytest.approx(found["step_time"])
    assert found["now"] == ["d0"]
    assert not found["elsewhere"]["d1"]["feasible"]
    assert "pinned" in found["elsewhere"]["d1"]["reason"]
    loosen = [
        "explain",
        problem_path,
        str(first),
        "--op",
        "f2",
        "--loosen",
        "--placer",
        "heft",
    ]
    assert run([*loosen, "--budget", "0"]) == 0
    assert "pin layers.*=d0" in capsys.readouterr().out
    assert run(["diff", problem_path, str(first), str(second), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["before"]["transfers"] == 0
    assert answer["same"] + sum(move["ops"] for move in answer["moves"]) == 18
    assert run(["diff", problem_path, str(first), str(second)]) == 0
    assert "what moved" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--pin", "layer.0=d0"], 2, "near: 'layers.0'"),
        (["--pin", "layers.0=d7"], 2, "no device is named 'd7'"),
        (["--pin", "layers.0"], 2, "PATTERN=DEVICE"),
        (["--max-devices", "0"], 2, "max"),
        (["--headroom", "lots"], 2, "headroom 'lots'"),
        (["--constraints", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["--table", "placement.txt"], 2, ".md or .csv"),
        (["--pin", "layers.0=d0", "--forbid", "layers.0=d0"], 3, "leave no device"),
    ],
)
def test_what_cannot_be_is_one_line(problem_path, tmp_path, capsys, more, code, told):
    """Each fault is one line, and nothing is written."""
    output = tmp_path / "out.json"
    assert place(problem_path, output, *more) == code
    err = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("  ")]
    assert len(err) == 1
    assert told in err[0]
    assert not output.exists()


def test_a_profiled_problem_keeps_what_was_asked(tmp_path, capsys):
    """Pins are in the problem's file, with groups that do not cross them."""
    output = str(tmp_path / "problem.json")
    flags = ["--groups", "40", "--pin", "blocks.0=gpu:1", "--forbid", "head=gpu:0"]
    assert (
        run(["profile", "mlp", "--cluster", "nvlink-a100-4", "-o", output, *flags]) == 0
    )
    problem = read_problem(output)
    assert problem.forbid is not None
    for op, module in enumerate(problem.module):
        mine = (module or "").startswith("blocks.0")
        assert (problem.pin[op] == 1) == mine
        assert problem.forbid[op, 0] == (module or "").startswith("head")
