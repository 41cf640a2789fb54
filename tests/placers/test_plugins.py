"""Placers of others: by class, by file, by entry point; the example of CONTRIBUTING.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import gnnplace
from gnnplace.bench.rows import read_rows
from gnnplace.bench.standings import merge_best_known, standings
from gnnplace.cli.main import run
from gnnplace.errors import InputError
from gnnplace.placers import contract, plugins
from gnnplace.placing.roster import make_placer
from gnnplace.problem import write_problem

ROOT = Path(__file__).parents[2]
WRONG = """
from gnnplace.placers import Found, Placer
import numpy as np

class Silent(Placer):
    def search(self, space, rng, deadline):
        return None

class NoSearch(Placer):
    name = "no-search"

class Fails(Placer):
    name = "fails"
    def search(self, space, rng, deadline):
        return {}["nothing"]

class Number(Placer):
    name = "number"
    def search(self, space, rng, deadline):
        return 1

class Outside(Placer):
    name = "outside"
    def search(self, space, rng, deadline):
        return Found(np.full(space.problem.num_ops, 99), np.arange(space.problem.num_ops))

class Twice(Placer):
    name = "twice"
    def search(self, space, rng, deadline):
        nowhere = np.zeros(space.problem.num_ops, dtype=np.int64)
        return Found(nowhere, nowhere)

class Wide(Outside):
    name = "wide"
    def __init__(self, workers=1):
        self.workers = workers

class Other:
    name = "other"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the example of CONTRIBUTING.md, and a problem."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"Write `mine\.py`.*?```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    (tmp_path / "mine.py").write_text(re.sub(r"^   ", "", block[1], flags=re.MULTILINE))
    write_problem(tmp_path / "problem.json", contract.branches())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_the_example_is_clean(folder):
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--config",
        str(ROOT / "pyproject.toml"),
    ]
    subprocess.run([*ruff, "--ignore", "D102,D107", "mine.py"], check=True)


@pytest.mark.parametrize(
    ("named", "device"), [("mine:MyPlacer", 3), ("mine.py:MyPlacer?back=2", 2)]
)
def test_a_class_is_named_on_the_command_line(folder, named, device):
    command = [
        "place",
        "problem.json",
        "--placer",
        named,
        "--budget",
        "0",
        "-o",
        "out.json",
    ]
    assert run(command) == 0
    answer = json.loads(Path("out.json").read_text())
    assert set(answer["device"].values()) == {f"d{device}"}
    assert answer["placer"] == "my-placer"
    # Twelve ops of 4 s, two of 1 s, one after another.
    assert answer["predicted_step_time"] == 50.0


def test_it_passes_the_contract_and_serves_in_python(folder):
    made = make_placer("mine:MyPlacer")
    for check in contract.CHECKS:
        check(made)
    problem = contract.branches()
    assert gnnplace.place(problem, placer=made, budget=0.0).step_time == 50.0
    with pytest.raises(InputError, match="back: the placer 'my-placer' is made"):
        gnnplace.place(problem, placer=made, back=2)


def test_its_row_comes_out_where_it_belongs(folder):
    """Beside the committed rows of the suite, in process and from a worker; 5 s, of them 3 s for
    the worker's start."""
    problem = "graph: t5-small, cluster: nvlink-a100-8, microbatches: 4"
    suite = (ROOT / "benchmarks/suites/standard.yaml").read_text()
    line = next(line for line in suite.splitlines() if problem in line)
    Path("one.yaml").write_text(f"name: standard\nplacers: [heft]\nproblems:\n{line}")
    found = []
    for processes in ("0", "1"):
        rows = Path(f"rows-{processes}")
        command = ["bench", "one.yaml", "--placers", "mine:MyPlacer", "-o", str(rows)]
        assert run([*command, "--processes", processes]) == 0
        found += read_rows(rows / "standard.jsonl")
    assert found[0]["step_time"] == found[1]["step_time"]
    committed = read_rows(ROOT / "benchmarks/results/standard/standard.jsonl")
    same = [row for row in committed if row["problem"] == found[0]["problem"]]
    told = standings([*same, found[0]], merge_best_known({}, [*same, found[0]]))
    ratio = {
        one.placer: one.ratio.mean for one in told if one.ratio and one.budget == 0.0
    }
    assert len(ratio) == 14
    assert ratio["mine:MyPlacer"] == ratio["single"] > ratio["portfolio"] >= 1.0


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nowhere:Mine", "cannot import 'nowhere'"),
        ("wrong:Missing", "has no callable 'Missing'"),
        ("missing.py:Mine", "there is no file 'missing.py'"),
        ("wrong:Other", "no subclass of gnnplace.placers.Placer"),
        ("wrong:Silent", "the class has no name"),
        ("wrong:NoSearch", "the class has no method search"),
        ("wrong:Fails", r"its search failed: KeyError: 'nothing' at .*wrong.py:15"),
        ("wrong:Number", r"its search gave int, not Found\(device, order\)"),
        ("wrong:Outside", "its search gave device 99 of 4"),
        ("wrong:Twice", "an order that does not hold each of 14 ops once"),
        ("mine:MyPlacer?front=1", "unexpected keyword argument 'front'"),
        ("magic", "unknown; placers: single, .* or module:Class"),
    ],
)
def test_what_is_wrong_is_one_line(folder, named, said, capsys, monkeypatch):
    (folder / "wrong.py").write_text(WRONG)
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    command = [
        "place",
        "problem.json",
        "--placer",
        named,
        "--budget",
        "0",
        "-o",
        "out.json",
    ]
    assert run(command) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.search(said, told), told
    assert not Path("out.json").exists()


def test_an_option_may_have_the_name_of_a_built_in_one(folder, monkeypatch):
    (folder / "wrong.py").write_text(WRONG)
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    assert make_placer("wrong:Wide?workers=3").workers == 3
    with pytest.raises(InputError, match="workers is an option of exact alone"):
        make_placer("heft?workers=3")


def test_entry_points_are_placers_and_take_no_name_twice(folder, monkeypatch):
    def installed(*points):
        plugins.find_installed_placers.cache_clear()
        monkeypatch.setattr(plugins, "entry_points", lambda group: points)

    point = EntryPoint("my-placer", "mine:MyPlacer", plugins.GROUP)
    monkeypatch.syspath_prepend(str(folder))
    try:
        installed(point)
        assert "my-placer" in gnnplace.placer_names()
        assert make_placer("my-placer?back=2").back == 2
        installed(EntryPoint("heft", "mine:MyPlacer", plugins.GROUP))
        with pytest.raises(
            InputError, match=r"entry point 'heft' of mine:MyPlacer: .* already"
        ):
            make_placer("single")
        installed(EntryPoint("gone", "nowhere:Mine", plugins.GROUP))
        with pytest.raises(InputError, match="'gone': nowhere:Mine cannot be imported"):
            make_placer("gone")
    finally:
        monkeypatch.undo()
        plugins.find_installed_placers.cache_clear()
