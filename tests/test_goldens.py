"""Eight commands answer as in ``goldens.json``; ``python -m tests.test_goldens`` writes it anew.

Budgets are 0, seeds fixed, and seconds of the machine are left out, so that what differs is a
changed answer: a change that means to change one writes the file anew and says why.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnplace.cli.console import show_progress
from gnnplace.cli.main import run
from gnnplace.problem import write_problem
from tests.random_problems import random_problem

FILE = Path(__file__).with_name("goldens.json")
PLACED = ("place", "problem.json", "--budget", "0", "-o", "placement.json", "--placer")
COMMANDS = {
    "etf": (*PLACED, "etf"),
    "heft-contention": (*PLACED, "heft-contention"),
    "min-cut": (*PLACED, "min-cut"),
    "simulate": ("simulate", "problem.json", "placement.json", "--json"),
    "shard": ("shard", "alexnet", "--devices", "8", "--json"),
    "unknown placer": (*PLACED, "magic"),
    "negative budget": ("place", "problem.json", "--budget", "-1", "-o", "placement.json"),
    "broken file": ("simulate", "broken.json", "placement.json"),
}
OF_THE_MACHINE = ("seconds",)


def answers(folder: Path) -> dict[str, Any]:
    """What the commands print and write, one after the other in a folder."""
    write_problem(folder / "problem.json", random_problem(np.random.default_rng(5), 40, 3))
    (folder / "broken.json").write_text(
        '{"format": "gnnplace-problem", "version": 1, "devise": []}'
    )
    found = {}
    with contextlib.chdir(folder):
        for name, arguments in COMMANDS.items():
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run([*arguments, "--quiet"])
            found[name] = {"code": code, "error": err.getvalue()}
            if "--json" in arguments:
                found[name]["answer"] = _kept(json.loads(out.getvalue()))
            elif code == 0:
                found[name]["answer"] = _kept(json.loads(Path("placement.json").read_text()))
    return found


def _kept(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in OF_THE_MACHINE}


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    try:
        return answers(tmp_path_factory.mktemp("goldens"))
    finally:
        show_progress(True)  # --quiet would hide what tests after these read


@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_is_what_it_was(name: str, now: dict[str, Any]) -> None:
    before = json.loads(FILE.read_text())[name]
    assert {**now[name], "answer": None} == {**before, "answer": None}
    then, found = before.get("answer", {}), now[name].get("answer", {})
    assert found.keys() == then.keys()
    for key, value in then.items():
        number = isinstance(value, float)
        assert found[key] == (pytest.approx(value, rel=1e-12) if number else value), key


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        FILE.write_text(json.dumps(answers(Path(name)), indent=1) + "\n")
