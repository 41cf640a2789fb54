"""``CostTables``: measured rows by kind of GPU, the surfaces over them, the errors to expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.costs.kin import CORRECTED, POOL, POOLED, kin_of
from gnnplace.costs.rows import Rows, read_rows, roofline
from gnnplace.costs.surface import Correction, Surface
from gnnplace.files import read_json

FOLDER = Path(__file__).parent / "tables"
ERRORS = "errors.json"
ENDING = ".csv.gz"
Key = tuple[str, str, str]  # kind, op, type


@dataclass(frozen=True, eq=False)
class CostTables:
    """Measured ops of kinds of devices.

    Attributes:
        rows: The measured rows by kind of device.
        errors: The errors that `gnnplace.costs.calibration.calibrate` found of them.
        given: The errors of the user's own rows alone, by the kinds that have some.
        candidates: The candidates of `gnnplace.costs.prediction` that were asked for.
    """

    rows: Mapping[str, Rows]
    errors: Mapping[str, Any]
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    candidates: dict[Key, list[Any]] = field(default_factory=dict)
    _surfaces: dict[Key, Surface | None] = field(default_factory=dict)

    def surface(self, kind: str, op: str, dtype: str) -> Surface | None:
        """Points of one op, or None if there are none."""
        key = (kind, op, dtype)
        if key not in self._surfaces:
            self._surfaces[key] = self._made(*key)
        return self._surfaces[key]

    def errors_of(self, kind: str, what: str) -> Mapping[str, list[float]]:
        """Errors of a relation by op, for rows of a kind: of the user's own where they say.

        GPUs say much of each other and nothing of a CPU.
        """
        known: Mapping[str, list[float]] = self.errors[what]
        own: Mapping[str, list[float]] = self.given.get(kind, {}).get(what, {})
        if not own.get("all"):
            return known
        return own if kind == "cpu" else {**known, **own}

    def _made(self, kind: str, op: str, dtype: str) -> Surface | None:
        rows = self.rows.get(kind)
        if rows is None:
            return None
        named = np.isin(rows.op, sorted(POOLED)) if op == POOL else rows.op == op
        index = np.flatnonzero(named & (rows.dtype == dtype))
        if not index.size:
            return None
        mine = rows.take(index)
        log_ratio = np.log(mine.seconds / roofline(kind, mine))
        base = self.surface(kind, kin_of(op), dtype) if op in CORRECTED else None
        return Surface(mine.at, log_ratio) if base is None else Correction(mine.at, log_ratio, base)


@cache
def shipped() -> CostTables:
    """The tables that come with the package; see its `tables/README.md`."""
    rows: dict[str, Rows] = {}
    for path in sorted(FOLDER.glob(f"*{ENDING}")):
        rows |= read_rows(path)
    return CostTables(rows, read_json(FOLDER / ERRORS))
