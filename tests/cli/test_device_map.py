"""``place --device-map``: what is written, what is refused, and that nothing is half-written."""

from __future__ import annotations

import json

import pytest

from gnnplace.cli.main import run
from gnnplace.placers import contract
from gnnplace.problem import write_problem

MODEL = """
import torch
from tests.run.device_maps.mapped import build
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    write_problem(tmp_path / "problem.json", contract.training_chain())


def place(*more, what="mine.py:build", placer="round-robin", cluster="nvlink-a100-2"):
    given = ["--cluster", cluster] if cluster else []
    fixed = [
        "--placer",
        placer,
        "--budget",
        "0",
        "--device-map",
        "map.json",
        "-o",
        "out.json",
    ]
    return run(["place", what, *given, *fixed, *more])


def test_modules_and_devices_are_written(tmp_path, capsys):
    """By module, a class that is not split and a device with little memory: obeyed, in order."""
    flags = [
        "--forward-only",
        "--by-module",
        "--no-split",
        "ModuleList",
        "--max-memory",
        "1=3kB",
    ]
    assert place(*flags, placer="single") == 0
    assert json.loads((tmp_path / "map.json").read_text()) == {"": 0}
    (tmp_path / "my.yaml").write_text("by_module: true\nno_split: [ModuleList]\n")
    assert place("--constraints", "my.yaml", "--optimizer", "adamw") == 0
    found = json.loads((tmp_path / "map.json").read_text())
    assert {*found} == {"words", "places", "blocks", "head", "unread"}
    assert {*found.values()} == {0, 1}
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept["x-capture"]["constraints"] == {
        "by_module": True,
        "no_split": ["ModuleList"],
    }
    capsys.readouterr()
    loosen = ["--loosen", "--placer", "round-robin", "--budget", "0"]
    assert run(["explain", "mine.py:build", "out.json", "head", *loosen]) == 0


@pytest.mark.parametrize(
    ("more", "what", "cluster", "told"),
    [
        (
            (),
            "mine.py:build",
            "nvlink-a100-2",
            "the ops of module 'blocks.0' are on gpu:0 and gpu:1",
        ),
        (
            ("--microbatches", "2"),
            "mine.py:build",
            "nvlink-a100-2",
            "leave --microbatches out",
        ),
        ((), "problem.json", None, "give the model, not its problem file"),
        (
            ("--no-split", "Blok"),
            "mine.py:build",
            "nvlink-a100-2",
            "did you mean 'Block'",
        ),
        (
            ("--max-memory", "7=1GB"),
            "mine.py:build",
            "nvlink-a100-2",
            "no device is called so",
        ),
        (
            ("--max-memory", "0=lots"),
            "mine.py:build",
            "nvlink-a100-2",
            "give bytes, as 10GiB",
        ),
        (("--by-module",), "mine.py:build", "cpu:2", "accelerate knows one CPU"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, capsys, more, what, cluster, told):
    """Each fault is one line, exit 2, and nothing is written."""
    assert place(*more, what=what, cluster=cluster) == 2
    err = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("  ")]
    assert len(err) == 1
    assert told in err[0]
    assert not (tmp_path / "map.json").exists()
    assert not (tmp_path / "out.json").exists()


def test_by_module_needs_a_model(capsys):
    """A problem's file has no modules to keep whole."""
    assert run(["place", "problem.json", "--by-module", "-o", "out.json"]) == 2
    assert "give the model" in capsys.readouterr().err
