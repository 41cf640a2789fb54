"""The errors to expect of predicted op times, found by predicting measured rows without themselves.

* local: each point of a surface is predicted by the others.
* gpu: a GPU's rows are predicted by each other GPU's surface; error = a + b * (how different the
  two are).
* kin, dtype: an op's rows are predicted by a related op, or in another type, on the same GPU.
* roofline: rows are predicted by the roofline times the mean ratio of ops of that name or group.

An error s is such that nine in ten residuals of the log are within 1.645 s. All pairs of GPU and op
have the same weight, however many rows they have. A bias is the mean of the medians; residuals are
relative to the bias of the others (other GPUs for an op, other ops for a group), as they would be
for a new one. An error between n GPUs or ops is that of a sample of n: it is widened to Student's
interval of the next one, t(0.95, n - 1) sqrt(1 + 1/n) / 1.645 (Geisser, Predictive Inference,
1993).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs.kin import (
    OTHER_TYPES,
    POOL,
    classify_op,
    find_kin,
    get_error_group,
    measure_distance,
)
from gnnplace.costs.rows import Rows, read_rows
from gnnplace.costs.tables import CostTables, Surface, load_shipped_tables
from gnnplace.problem import find_kind, get_figures

# Standard deviations on either side of the mean that hold nine in ten of a normal law.
NINETY = 1.645
LEAST = 3  # rows of a surface that is tried
LEAST_ERROR = 0.02
MOST_ERROR = 1.5
ABOVE = 0.7  # share of the pairs of GPUs whose error is at most the promised one
ALL = "all"
Surfaces = Mapping[tuple[str, str, str], Surface]


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of one try.

    Attributes:
        kind: The kind of GPU whose rows are answered.
        op: The op that is answered.
        answering: The GPU, kin or type that answers, if one does.
        apart: How unlike the GPUs are.
        residual: Log of measured over answered. [rows]
        distance: Octaves to the points that answer, median.
    """

    kind: str
    op: str
    answering: str
    residual: FloatArray
    apart: float = 0.0
    distance: float = 0.0


@dataclass(frozen=True)
class Evidence:
    """The residuals of all tries, by relation."""

    parts: Mapping[str, tuple[Residuals, ...]]

    def errors(self) -> dict[str, Any]:
        """Return the errors of all relations, as plain data."""
        kin = _fit_biases(self.parts["kin"], _kin_names)
        worst = max((error for _, error in kin.values()), default=1.0)
        typed = _fit_biases(self.parts["dtype"], _names, 0.0)
        return {
            "local": _local(self.parts["local"]),
            "gpu": _gpu(self.parts["gpu"]),
            "kin": {**kin, ALL: [0.0, worst]},
            "dtype": {ALL: [0.0, 1.0], **typed},
            "roofline": _fit_biases(self.parts["roofline"], _names),
        }


def with_table(path: str | Path) -> CostTables:
    """Return the shipped tables, with a user's own first for the kinds that it has.

    Raises:
        InputError: The file cannot be read, or no figures of a kind are known.
        FormatError: It is no table.
    """
    rows = read_rows(Path(path))
    for kind in rows:
        get_figures(kind)
    return with_rows(load_shipped_tables(), rows)


def with_rows(tables: CostTables, rows: Mapping[str, Rows]) -> CostTables:
    """Return tables in which a user's own rows replace those of their kinds."""
    rows_by_kind = {
        find_kind(kind) or kind: kind_rows for kind, kind_rows in rows.items()
    }
    errors = {
        kind: calibrate({kind: kind_rows}) for kind, kind_rows in rows_by_kind.items()
    }
    return CostTables(
        {**tables.rows, **rows_by_kind}, tables.errors, {**tables.user_errors, **errors}
    )


def calibrate(rows: Mapping[str, Rows]) -> dict[str, Any]:
    """Return the errors of all relations among tables by kind, as plain data."""
    return gather(rows).errors()


def gather(rows: Mapping[str, Rows]) -> Evidence:
    """Try every relation among tables by kind."""
    surfaces = _surfaces(rows)
    parts: dict[str, list[Residuals]] = {
        k: [] for k in ("local", "gpu", "kin", "dtype", "roofline")
    }
    for (kind, op, dtype), surface in surfaces.items():
        actual = surface.log_ratio
        parts["roofline"].append(Residuals(kind, op, "", actual))
        if len(surface.at) >= 2 * LEAST:
            value, distance = surface(surface.at, own=True)
            near = float(np.median(distance))
            parts["local"].append(
                Residuals(kind, op, "", actual - value, distance=near)
            )
        kin = surfaces.get((kind, find_kin(op), dtype))
        if kin is not None:
            residual = actual - kin(surface.at)[0]
            parts["kin"].append(Residuals(kind, op, find_kin(op), residual))
        for other_type in OTHER_TYPES.get(dtype, ()):
            answering = surfaces.get((kind, op, other_type))
            if answering is not None:
                parts["dtype"].append(
                    Residuals(kind, op, other_type, actual - answering(surface.at)[0])
                )
        parts["gpu"] += _predict_others(surfaces, kind, op, dtype)
    return Evidence({name: tuple(residuals) for name, residuals in parts.items()})


def _surfaces(rows: Mapping[str, Rows]) -> Surfaces:
    tables = CostTables(rows, {})
    surfaces: dict[tuple[str, str, str], Surface] = {}
    for kind, kind_rows in rows.items():
        pairs = zip(kind_rows.op.tolist(), kind_rows.dtype.tolist(), strict=True)
        for op, dtype in sorted(set(pairs)):
            for name in (op, *_parents(op)):
                surface = tables.surface(kind, name, dtype)
                if surface is not None and len(surface.at) >= LEAST:
                    surfaces[kind, name, dtype] = surface
    return surfaces


def _predict_others(
    surfaces: Surfaces, kind: str, op: str, dtype: str
) -> list[Residuals]:
    surface = surfaces[kind, op, dtype]
    residuals = []
    for key, answering in surfaces.items():
        other_kind = key[0]
        if other_kind != kind and key[1:] == (op, dtype):
            residuals.append(
                Residuals(
                    kind=kind,
                    op=op,
                    answering=other_kind,
                    residual=surface.log_ratio - answering(surface.at)[0],
                    apart=measure_distance(kind, other_kind, op, dtype),
                )
            )
    return residuals


def _parents(op: str) -> list[str]:
    parent = find_kin(op)
    if parent:
        return [parent, *_parents(parent)]
    return []


def spread(residuals: Iterable[FloatArray]) -> float:
    """Return the deviation of a normal law whose 90 % interval is that of the residuals.

    Args:
        residuals: The residuals of each try; each try weighs the same.
    """
    tries = list(residuals)
    values = np.abs(np.concatenate(tries))
    weight = np.concatenate([np.full(len(part), 1 / len(part)) for part in tries])
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return max(LEAST_ERROR, float(values[order][np.searchsorted(share, 0.9)]) / NINETY)


def widen_error(error: float, owners: int) -> float:
    """Return an error, found on so many GPUs or ops, as it is expected of the next one.

    One alone says little, so that its error doubles; more are widened by Student's t.
    """
    if owners < 2:
        return min(2 * error, MOST_ERROR)
    from scipy.stats import t as student  # late: a second

    factor = student.ppf(0.95, owners - 1) * np.sqrt(1 + 1 / owners) / NINETY
    return min(float(error * factor), MOST_ERROR)


def _names(part: Residuals) -> set[str]:
    """Return the names that gather an op's tries: its own, its group's, its class's and all."""
    return {part.op, get_error_group(part.op), classify_op(part.op), ALL}


def _kin_names(part: Residuals) -> set[str]:
    """Return the names under which tries of an op by its kin are gathered.

    Those by a pooled group count for the group too, for its ops without rows.
    """
    pair = f"{part.op}<{part.answering}"
    if part.answering == POOL:
        return {pair, get_error_group(part.op)}
    return {pair}


def _named(
    parts: Iterable[Residuals], names: Callable[[Residuals], set[str]]
) -> dict[str, list[Residuals]]:
    by_name: dict[str, list[Residuals]] = defaultdict(list)
    for part in parts:
        for name in names(part):
            by_name[name].append(part)
    return dict(sorted(by_name.items()))


def _local(parts: Iterable[Residuals]) -> dict[str, list[float]]:
    return {
        name: [
            round(spread(part.residual for part in tries), 4),
            round(float(np.median([part.distance for part in tries])), 4),
        ]
        for name, tries in _named(parts, _names).items()
    }


def _gpu(parts: Iterable[Residuals]) -> dict[str, list[float]]:
    """Return base and slope of a line through the errors of pairs of GPUs, by name.

    The error rises with how unlike two GPUs are. The line is lifted until it is above most errors.
    """
    result = {}
    for name, tries in _named(parts, _names).items():
        distance = np.array([part.apart for part in tries])
        error = np.array([spread([part.residual]) for part in tries])
        slope = 0.0
        if len(tries) > 4 and np.ptp(distance) > 0:
            slope = max(0.0, float(np.polyfit(distance, error, 1)[0]))
        base = max(LEAST_ERROR, float(np.quantile(error - slope * distance, ABOVE)))
        kinds = len({part.kind for part in tries})
        result[name] = [
            round(widen_error(base, kinds), 4),
            round(widen_error(slope, kinds), 4),
        ]
    return result


def _fit_biases(
    parts: Iterable[Residuals],
    names: Callable[[Residuals], set[str]],
    bias: float | None = None,
) -> dict[str, list[float]]:
    """Return bias and error by name. A bias that is given is not fitted."""
    result = {}
    for name, tries in _named(parts, names).items():
        # Tries of one op alone are left out by GPU, all others by op.
        is_one_op = len({part.op for part in tries}) == 1
        owner = np.array([part.kind if is_one_op else part.op for part in tries])
        median = np.array([np.median(part.residual) for part in tries])
        if bias is None:
            mean = float(median.mean())
        else:
            mean = bias
        unexplained = []
        for k, part in enumerate(tries):
            independent = median[owner != owner[k]]
            expected = mean
            if len(independent) and bias is None:
                expected = float(independent.mean())
            unexplained.append(part.residual - expected)
        error = widen_error(spread(unexplained), len(np.unique(owner)))
        result[name] = [round(mean, 4), round(error, 4)]
    return result
