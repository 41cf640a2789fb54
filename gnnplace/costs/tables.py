"""``Tables``: measured rows by kind of GPU, the surfaces over them, the errors to expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.costs.gpus import figures, known_kind
from gnnplace.costs.kin import POOL, POOLED
from gnnplace.costs.rows import Rows, read_rows, roofline
from gnnplace.costs.surface import Surface
from gnnplace.files import read_json

FOLDER = Path(__file__).parent / "tables"
ERRORS = "errors.json"
ENDING = ".csv.gz"
Key = tuple[str, str, str]  # kind, op, type


@dataclass(frozen=True, eq=False)
class Tables:
    """Measured ops of kinds of devices.

    Attributes:
        rows: By kind.
        errors: What `gnnplace.costs.calibration.calibrate` found of them.
        given: Kinds whose rows are the user's own; they go before all else.
    """

    rows: Mapping[str, Rows]
    errors: Mapping[str, Any]
    given: frozenset[str] = frozenset()
    _surfaces: dict[Key, Surface | None] = field(default_factory=dict)

    def surface(self, kind: str, op: str, dtype: str) -> Surface | None:
        """Points of one op, or None if there are none."""
        key = (kind, op, dtype)
        if key not in self._surfaces:
            self._surfaces[key] = self._made(*key)
        return self._surfaces[key]

    def _made(self, kind: str, op: str, dtype: str) -> Surface | None:
        rows = self.rows.get(kind)
        if rows is None:
            return None
        named = np.isin(rows.op, sorted(POOLED)) if op == POOL else rows.op == op
        index = np.flatnonzero(named & (rows.dtype == dtype))
        if not index.size:
            return None
        mine = rows.take(index)
        return Surface(mine.at, np.log(mine.seconds / roofline(kind, mine)))

    def with_rows(self, rows: Mapping[str, Rows]) -> Tables:
        """With a user's own rows in the place of what there is of their kinds."""
        named = {known_kind(kind) or kind: mine for kind, mine in rows.items()}
        return Tables({**self.rows, **named}, self.errors, self.given | set(named))


@cache
def shipped() -> Tables:
    """The tables that come with the package; see its `tables/README.md`."""
    rows: dict[str, Rows] = {}
    for path in sorted(FOLDER.glob(f"*{ENDING}")):
        rows |= read_rows(path)
    return Tables(rows, read_json(FOLDER / ERRORS))


def with_table(path: str | Path | None) -> Tables:
    """The shipped tables, with a user's own first for the kinds that it has.

    Raises:
        InputError: the file cannot be read, or no figures of a kind are known.
        FormatError: it is no table.
    """
    if path is None:
        return shipped()
    rows = read_rows(Path(path))
    for kind in rows:
        figures(kind)
    return shipped().with_rows(rows)
