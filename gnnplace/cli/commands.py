"""The commands and their options, as ``options.json`` has them."""

from __future__ import annotations

import json
from pathlib import Path

ROWS = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
COMMANDS = {name: row["about"] for name, row in ROWS["commands"].items()}
GONE = {"hybrid": "; use plan MODEL --cluster C --goal epochs"}
"""What took the place of a command that is gone."""
