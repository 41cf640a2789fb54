"""The error that a provenance promises against the one that is found, on what it has not seen.

* points: each measured op answered by its own table without it (provenance table);
* GPU: all rows of a GPU answered by the tables of all others, with errors calibrated without it;
* op: all rows of an op answered without its tables, likewise calibrated without them.

An interval is seconds * exp(+-1.645 error); it is to cover nine in ten. Rows are weighed so that
every pair of GPU and op counts alike, however many rows it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs.calibration import NINETY, Evidence, gather
from gnnplace.costs.kin import POOLED, get_error_group
from gnnplace.costs.prediction import (
    PROVENANCES,
    TABLE,
    find_error_numbers,
    predict,
)
from gnnplace.costs.rows import Rows
from gnnplace.costs.tables import CostTables

POINT, GPU, OP = "point", "GPU", "op"


@dataclass(frozen=True, eq=False)
class Trial:
    """Rows of one op on one GPU, predicted without something.

    Attributes:
        left_out: `POINT`, `GPU` or `OP`.
        kind: Of GPU.
        op: By name.
        dtype: Of it.
        off: Log of measured over predicted seconds. [rows]
        error: Promised. [rows]
        provenance: Of most rows.
    """

    left_out: str
    kind: str
    op: str
    dtype: str
    off: FloatArray
    error: FloatArray
    provenance: str

    @property
    def covered(self) -> float:
        """Share of the rows within their interval."""
        return float(np.mean(np.abs(self.off) <= NINETY * self.error))

    @property
    def missed(self) -> float:
        """Mean relative error."""
        return float(np.mean(np.abs(np.expm1(-self.off))))


def points_left_out(tables: CostTables) -> Iterator[Trial]:
    """Every row answered by its own surface without it."""
    for kind, op, dtype, rows in _each(tables.rows):
        surface = tables.surface(kind, op, dtype)
        if surface is None or len(rows) < 4:
            continue
        value, _ = surface(surface.at, own=True)
        local, _ = find_error_numbers(tables, kind, "local", op)
        error = np.full(len(rows), local)
        yield Trial(POINT, kind, op, dtype, surface.log_ratio - value, error, TABLE)


def without(evidence: Evidence, name: str) -> Evidence:
    """Nothing of a GPU or of an op."""
    kept = {
        relation: tuple(
            part for part in mine if name not in (part.kind, part.op, part.answering)
        )
        for relation, mine in evidence.parts.items()
    }
    return Evidence(kept)


def gpus_left_out(rows: Mapping[str, Rows]) -> Iterator[Trial]:
    """Every GPU answered by all others."""
    evidence = gather(rows)
    for kind in rows:
        others = {name: mine for name, mine in rows.items() if name != kind}
        tables = CostTables(others, without(evidence, kind).errors())
        for trial_kind, op, dtype, mine in _each({kind: rows[kind]}):
            yield _trial(GPU, trial_kind, op, dtype, mine, tables)


def ops_left_out(rows: Mapping[str, Rows]) -> Iterator[Trial]:
    """Every op answered by all others, on all GPUs at once."""
    evidence = gather(rows)
    for op in sorted(
        {str(name) for mine in rows.values() for name in np.unique(mine.op)}
    ):
        rest = {kind: mine.take(mine.op != op) for kind, mine in rows.items()}
        rest = {kind: mine for kind, mine in rest.items() if len(mine)}
        # Where the pointwise ops are answered for together, an op's share of that goes too.
        left = gather(rest) if op in POOLED else without(evidence, op)
        tables = CostTables(rest, left.errors())
        asked = {kind: mine.take(mine.op == op) for kind, mine in rows.items()}
        for kind, name, dtype, mine in _each(
            {k: m for k, m in asked.items() if len(m)}
        ):
            yield _trial(OP, kind, name, dtype, mine, tables)


def _trial(
    left_out: str, kind: str, op: str, dtype: str, rows: Rows, tables: CostTables
) -> Trial:
    found = predict(rows, kind, tables, tf32=())  # it was asked for by nobody here
    most = PROVENANCES[int(np.bincount(found.provenance).argmax())]
    off = np.log(rows.seconds / found.seconds)
    return Trial(left_out, kind, op, dtype, off, found.error, most)


def _each(tables: Mapping[str, Rows]) -> Iterator[tuple[str, str, str, Rows]]:
    for kind, rows in tables.items():
        for op, dtype in sorted(
            set(zip(rows.op.tolist(), rows.dtype.tolist(), strict=True))
        ):
            yield kind, op, dtype, rows.take((rows.op == op) & (rows.dtype == dtype))


@dataclass(frozen=True)
class Summary:
    """Trials of one name.

    Attributes:
        name: Of an op or a GPU.
        pairs: Of GPU and op.
        promised: Median error.
        missed: Mean relative error.
        covered: Share within the interval.
    """

    name: str
    pairs: int
    promised: float
    missed: float
    covered: float


def summaries(trials: list[Trial], by: Callable[[Trial], str]) -> list[Summary]:
    """Trials by a name, every trial counting alike."""
    names: dict[str, list[Trial]] = {}
    for trial in trials:
        names.setdefault(by(trial), []).append(trial)
    return [
        Summary(
            name,
            len(mine),
            float(np.median([np.median(trial.error) for trial in mine])),
            float(np.mean([trial.missed for trial in mine])),
            float(np.mean([trial.covered for trial in mine])),
        )
        for name, mine in sorted(names.items())
    ]


def op_kind(trial: Trial) -> str:
    """Kinds of ops that the report tells apart: products by name, the rest by group."""
    return get_error_group(trial.op)
