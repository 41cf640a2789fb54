"""What a base install answers, and the line that names the extra of what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
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
    "devices": [
        {"name": name, "kind": "cpu", "memory": 1e9} for name in ("cpu:0", "cpu:1")
    ],
    "links": [
        {"source": "cpu:0", "target": "cpu:1", "latency": 1e-6, "bandwidth": 1e9},
        {"source": "cpu:1", "target": "cpu:0", "latency": 1e-6, "bandwidth": 1e9},
    ],
    "ops": [{"name": "a", "time": {"cpu": 1.0}}, {"name": "b", "time": {"cpu": 2.0}}],
    "tensors": [{"producer": "a", "bytes": 8, "consumers": ["b"]}],
}


@dataclass(frozen=True)
class BaseInstall:
    """What commands did without any extra; `folder` has the files that they wrote."""

    codes: dict[str, int]
    imported: str
    output: str
    errors: str
    folder: Path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Commands of one process in which no library of an extra can be imported.

    Five processor seconds: a process of its own starts once for all commands, a search among them.
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
        "m-sct": "place toy.json --placer m-sct --budget 0 -o m-sct.json",
        "best": "place toy.json --budget 0 -o best.json",
        "network": "place toy.json --placer gnn --budget 0 -o other.json",
        "solver": "place toy.json --placer exact --budget 1 -o other.json",
        "capture": "plan mlp --cluster 2xH100",
        "picture": "shard mlp?batch=8 --devices 2 --html other.html",
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
    return BaseInstall(
        codes=dict(zip(commands, json.loads(codes + "]"), strict=True)),
        imported=imported.strip(),
        output=done.stdout,
        errors=done.stderr,
        folder=folder,
    )


def test_planning_and_classical_placers_need_no_extra(base):
    names = (
        "plan",
        "fits",
        "lora",
        "convert",
        "explain",
        "place",
        "simulate",
        "m-sct",
        "best",
    )
    assert {name: base.codes[name] for name in names} == dict.fromkeys(names, 0)
    assert base.imported == "[]"


def test_what_is_missing_is_one_line_with_its_extra(base):
    assert {
        base.codes[name] for name in ("network", "solver", "capture", "picture")
    } == {2}
    lines = [line for line in base.errors.splitlines() if line.startswith("gnnplace: ")]
    assert lines == [
        f"gnnplace: {library} is not installed, and this needs it: pip install 'gnnplace[{extra}]'"
        for library, extra in (
            ("torch", "torch"),
            ("ortools", "exact"),
            ("torch", "torch"),
            ("matplotlib", "report"),
        )
    ]
    assert "Traceback" not in base.errors
    assert not [
        path.name for path in base.folder.iterdir() if path.name.startswith("other")
    ]


def test_an_answer_does_not_change_with_what_is_installed(
    base, tmp_path, monkeypatch, capsys
):
    """The same commands with all extras: the same placements, or a line says what is left out."""
    monkeypatch.chdir(tmp_path)
    Path("toy.json").write_text(json.dumps(TOY))
    for placer in ("m-sct", "etf"):
        assert (
            run(
                [
                    "place",
                    "toy.json",
                    "--placer",
                    placer,
                    "--budget",
                    "0",
                    "-o",
                    "own.json",
                ]
            )
            == 0
        )
        name = "placed.json" if placer == "etf" else f"{placer}.json"
        without = json.loads((base.folder / name).read_text())
        own = json.loads(Path("own.json").read_text())
        assert [own[key] for key in ("device", "sequence")] == [
            without[key] for key in ("device", "sequence")
        ]
    left_out = "without the graph network's starts: torch is not installed"
    best = next(line for line in base.output.splitlines() if line.startswith("best: "))
    assert left_out in best
    assert "pip install 'gnnplace[torch]'" in best
    assert run(["place", "toy.json", "--budget", "0", "-o", "own.json"]) == 0
    assert left_out not in capsys.readouterr().out


def test_a_base_install_has_fourteen_packages():
    names = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert len(names) == 14
    assert not {name.replace("-", "_") for name in names} & set(EXTRA_OF)


@pytest.mark.parametrize("library", EXTRA_OF)
def test_every_library_is_in_the_extra_that_is_said(library):
    names = {
        Requirement(text).name.replace("-", "_") for text in EXTRAS[EXTRA_OF[library]]
    }
    assert library in names
    assert EXTRA_OF[library] in Requirement(EXTRAS["all"][0]).extras


def test_errors_of_other_modules_stay():
    assert (
        missing_extra(ModuleNotFoundError("No module named 'mine'", name="mine"))
        is None
    )
    assert missing_extra(ImportError("torch")) is None
    error = missing_extra(ModuleNotFoundError("", name="torch_geometric.nn"))
    assert str(error).startswith("torch-geometric is not installed")


def test_a_comparison_keeps_the_placers_that_miss_a_library(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "optuna", None)
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(TOY))
    assert run(["compare", str(path), "--placers", "etf,optuna", "--budget", "0"]) == 0
    assert "gnnplace[train]" in capsys.readouterr().out
