"""What a fresh process imports: a command starts without what it does not need."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gnnplace.cli.commands import COMMANDS
from gnnplace.problem import write_problem
from tests.random_problems import random_problem

MODELS = ("torch", "lightning", "torch_geometric", "transformers", "matplotlib")
SCIPY = (
    "scipy.linalg",
    "scipy.sparse",
    "scipy.optimize",
    "scipy.stats",
    "scipy.spatial",
)
# Numba imports scipy's empty front page to learn its version, and nothing behind it.
ALGORITHMS = ("networkx", *SCIPY, "ortools", "optuna", "pymetis", "sqlalchemy")
HELP = (*MODELS, *ALGORITHMS, "scipy", "numba", "rich", "psutil")
CODE = """
import sys
from gnnplace.cli.main import run
try:
    code = run(sys.argv[2:])
except SystemExit as help:
    code = help.code
sys.exit(code or ", ".join(name for name in sys.argv[1].split() if name in sys.modules) or 0)
"""


def run(*arguments: str, heavy: tuple[str, ...] = MODELS) -> None:
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


@pytest.mark.parametrize("placer", ["heft", "etf"])
def test_placing_and_simulating_a_problem_import_no_torch_networkx_or_scipy(
    problem, placer, tmp_path
):
    placement = str(tmp_path / "placement.json")
    heavy = (*MODELS, *ALGORITHMS)
    run("place", problem, "--placer", placer, "-o", placement, heavy=heavy)
    run("simulate", problem, placement, "--json", heavy=heavy)


def test_placing_with_the_network_imports_no_pyg(problem, tmp_path):
    """Torch's import makes it 4 s."""
    placement = str(tmp_path / "placement.json")
    heavy = tuple(name for name in MODELS if name != "torch")
    run(
        "place",
        problem,
        "--placer",
        "gnn",
        "--budget",
        "0",
        "-o",
        placement,
        heavy=heavy,
    )


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_imports_what_parses_alone(command):
    """Processor time of a help is imports; numba, scipy and networkx were most of it."""
    run(command, "--help", heavy=HELP)
