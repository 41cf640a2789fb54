"""``sailor.json``: Sailor's published steps, peaks and layer profiles; the row that is wrong."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

FLOAT = 4  # bytes
UNSOUND = {("GPT-Neo-2.7", "N4_D4"): "reduction takes the whole step; 26 of 34 layers"}


@cache
def data() -> dict[str, Any]:
    """The file of published rows and profiles."""
    text = (files("benchmarks.studies.costs") / "sailor.json").read_text(
        encoding="utf-8"
    )
    return dict(json.loads(text))
