"""The notebooks of the docs run, and print what they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.leftovers import nothing_left
from tests.notebooks.running import executed

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
EXACT = {"place": range(1, 7), "train": (5, 7)}
"""Cells whose numbers are the same on every machine."""


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.ipynb")))
def test_it_runs_and_prints_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = FOLDER / f"{name}.ipynb"
    shown = json.loads(path.read_text(encoding="utf-8"))["cells"]
    with nothing_left():
        made = executed(path)["cells"]
    pairs = [
        (a, b) for a, b in zip(shown, made, strict=True) if a["cell_type"] == "code"
    ]
    for number, (before, now) in enumerate(pairs, 1):
        if number in EXACT[name]:
            assert now["outputs"] == before["outputs"], f"cell {number}"
