"""Torch stays out of what needs none: one test, of what is imported as commands run."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gnnplace.problem import write_problem
from tests.random_problems import random_problem

HEAVY = ("torch", "lightning", "torch_geometric", "transformers", "matplotlib")
CODE = """
import sys
from gnnplace.cli.main import run
try:
    code = run(sys.argv[2:])
except SystemExit as help:
    code = help.code
sys.exit(code or ", ".join(name for name in sys.argv[1].split() if name in sys.modules) or 0)
"""


def run(*arguments: str, heavy: tuple[str, ...] = HEAVY) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, " ".join(heavy), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def problem(tmp_path):
    path = tmp_path / "problem.json"
    write_problem(path, random_problem(np.random.default_rng(0), 12, 2))
    return str(path)


def test_placing_and_simulating_a_problem_import_no_torch(problem, tmp_path):
    placement = str(tmp_path / "placement.json")
    run("place", problem, "--placer", "heft", "-o", placement)
    run("simulate", problem, placement, "--json")


def test_placing_with_the_network_imports_no_pyg(problem, tmp_path):
    """Torch's import makes it 4 s."""
    placement = str(tmp_path / "placement.json")
    heavy = tuple(name for name in HEAVY if name != "torch")
    run("place", problem, "--placer", "gnn", "--budget", "0", "-o", placement, heavy=heavy)


@pytest.mark.parametrize(
    "command",
    ["simulate", "place", "plan", "convert", "shard", "data", "bench", "measurements", "diff"],
)
def test_help_imports_no_torch(command):
    run(command, "--help")
