"""What a base install answers, and the line that names the extra of what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gnnplace.cli.main import run
from gnnplace.foreign import EXTRA_OF, missing_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

from gnnplace.foreign import EXTRA_OF


class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRA_OF:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
from gnnplace.cli.main import run

codes = [run(command.split()) for command in sys.argv[1:]]
print(codes, sorted(name for name in sys.modules if name in EXTRA_OF))
"""
TOY = {
    "format": "gnnplace-problem",
    "version": 1,
    "name": "toy",
    "devices": [{"name": name, "kind": "cpu", "memory": 1e9} for name in ("cpu:0", "cpu:1")],
    "links": [
        {"source": "cpu:0", "target": "cpu:1", "latency": 1e-6, "bandwidth": 1e9},
        {"source": "cpu:1", "target": "cpu:0", "latency": 1e-6, "bandwidth": 1e9},
    ],
    "ops": [{"name": "a", "time": {"cpu": 1.0}}, {"name": "b", "time": {"cpu": 2.0}}],
    "tensors": [{"producer": "a", "bytes": 8, "consumers": ["b"]}],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Commands of one process in which no library of an extra can be imported.

    Four processor seconds: a process of its own starts once for ten commands, a search among them.
    """
    folder = tmp_path_factory.mktemp("base")
    (folder / "toy.json").write_text(json.dumps(TOY))
    question = "plan Qwen/Qwen3-0.6B --cluster 2xH100"
    commands = {
        "plan": f"{question} --launcher megatron-lm -o plan.json",
        "fits": f"{question} --fits --given dp=2,microbatch_size=1",
        "lora": f"{question} --lora r=8 --given dp=2,microbatch_size=1",
        "convert": "convert plan.json --to megatron-lm -o train.sh",
        "explain": "explain plan.json",
        "place": "place toy.json --placer etf --budget 0 -o placed.json",
        "simulate": "simulate toy.json placed.json",
        "learned": "place toy.json --placer learned --budget 0 -o other.json",
        "solver": "place toy.json --placer m-sct --budget 0 -o other.json",
        "capture": "plan mlp --cluster 2xH100",
    }
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *commands.values()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stdout.strip().splitlines()[-1]
    codes, _, imported = last.partition("]")
    return dict(zip(commands, json.loads(codes + "]"), strict=True)), imported, done.stderr


def test_planning_and_classical_placers_need_no_extra(base):
    codes, imported, _ = base
    names = ("plan", "fits", "lora", "convert", "explain", "place", "simulate")
    assert {name: codes[name] for name in names} == dict.fromkeys(names, 0)
    assert imported.strip() == "[]"


def test_what_is_missing_is_one_line_with_its_extra(base):
    codes, _, errors = base
    assert {codes[name] for name in ("learned", "solver", "capture")} == {2}
    lines = [line for line in errors.splitlines() if line.startswith("gnnplace: ")]
    torch_line = "torch is not installed, and this needs it: pip install 'gnnplace[torch]'"
    exact_line = "ortools is not installed, and this needs it: pip install 'gnnplace[exact]'"
    assert lines == [f"gnnplace: {line}" for line in (torch_line, exact_line, torch_line)]
    assert "Traceback" not in errors


def test_a_base_install_has_fourteen_packages():
    names = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert len(names) == 14
    assert not {name.replace("-", "_") for name in names} & set(EXTRA_OF)


@pytest.mark.parametrize("library", EXTRA_OF)
def test_every_library_is_in_the_extra_that_is_said(library):
    names = {Requirement(text).name.replace("-", "_") for text in EXTRAS[EXTRA_OF[library]]}
    assert library in names
    assert EXTRA_OF[library] in Requirement(EXTRAS["all"][0]).extras


def test_errors_of_other_modules_stay():
    assert missing_extra(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    assert missing_extra(ImportError("torch")) is None
    error = missing_extra(ModuleNotFoundError("", name="torch_geometric.nn"))
    assert str(error).startswith("torch-geometric is not installed")


def test_a_comparison_keeps_the_placers_that_miss_a_library(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.linear_solver", None)
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(TOY))
    assert run(["compare", str(path), "--placers", "etf,m-sct", "--budget", "0"]) == 0
    assert "ortools" in capsys.readouterr().out
