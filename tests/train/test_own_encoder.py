"""docs/howto/encoder.md as it stands, from an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnnplace.cli.main import run
from gnnplace.placers import contract
from gnnplace.problem import write_problem
from gnnplace.train.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/encoder.md").read_text(encoding="utf-8")
QUICK = ("--trainer.max_epochs=1", "--data.problems=4", "--data.validation_problems=1")
SILENT = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    (tmp_path / "mine.py").write_text(block[1])
    write_problem(tmp_path / "problem.json", contract.branches())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def commands():
    text = "".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace(
        "\\\n", ""
    )
    return [shlex.split(line)[1:] for line in text.splitlines()]


def test_the_example_is_clean(folder):
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--config",
        str(ROOT / "pyproject.toml"),
    ]
    subprocess.run([*ruff, "--ignore", "D107", "mine.py"], check=True)


@pytest.mark.parametrize("command", commands()[:4])
def test_encoders_of_the_package_train(folder, command):
    """One step of one problem each; 2 s, most of them Lightning's."""
    main([*command[1:], *QUICK, *SILENT])


def test_a_training_loop_of_one_s_own_learns(folder):
    """5 s: the dataset makes problems of all graphs of the store."""
    made = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], made)
    assert made["loss"] < np.log(4)  # of devices that are drawn alike


def test_an_encoder_and_an_order_of_one_s_own_train_and_place(folder):
    """4 s: a training with Lightning, and a placement in a process that never saw ``mine``."""
    fit, place = commands()[4:]
    main([*fit[1:], *QUICK, *SILENT])
    config = json.loads(Path("policy/config.json").read_text())
    assert config["encoder"] == {"class_path": "mine.Sage", "init_args": {"width": 16}}
    assert config["order"] == "mine:longest_first"
    subprocess.run(
        [sys.executable, "-m", "gnnplace", *place], check=True, capture_output=True
    )
    placed = json.loads(Path("placement.json").read_text())
    assert placed["placer"] == "gnn"


def test_code_elsewhere_is_refused_unless_it_is_trusted(folder, monkeypatch, capsys):
    fit, place = commands()[4:]
    main([*fit[1:], *QUICK, *SILENT])
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(folder))
    paths = [str(folder / one) if (folder / one).exists() else one for one in place]
    assert run(paths) == 2
    assert "code outside of this folder" in capsys.readouterr().err
    assert run([*paths, "--trust", "1"]) == 0
