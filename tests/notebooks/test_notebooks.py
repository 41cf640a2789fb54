"""The notebooks of the docs run, and print what they show."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import psutil
import pytest
import torch

from tests.notebooks.running import executed

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
EXACT = {"place": range(1, 7), "train": (5, 7)}
"""Cells whose numbers are the same on every machine."""


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.ipynb")))
def test_it_runs_and_prints_what_it_shows(name, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    path = FOLDER / f"{name}.ipynb"
    shown = json.loads(path.read_text(encoding="utf-8"))["cells"]
    made = executed(path)["cells"]
    pairs = [(a, b) for a, b in zip(shown, made, strict=True) if a["cell_type"] == "code"]
    for number, (before, now) in enumerate(pairs, 1):
        if number in EXACT[name]:
            assert now["outputs"] == before["outputs"], f"cell {number}"
    gc.collect()
    assert psutil.Process().children(recursive=True) == []
