"""What errors to promise: every relation between tables tried on the rows that there are.

* local: points of a surface left out, one at a time.
* gpu: a GPU's rows answered by each other GPU's surface; error = a + b * (how unlike they are).
* kin, dtype: an op's rows answered by its kin, or in another type, on the same GPU.
* roofline: rows answered by the roofline times the median of other ops of the group.

An error s is such that nine in ten residuals of the log are within 1.645 s. Relations that cannot
be tried for want of rows get the largest error of those that can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from gnnplace.costs.kin import OTHER_TYPES, POOL, apart, group_of, kin_of
from gnnplace.costs.prediction import NINETY
from gnnplace.costs.rows import FAMILY, Floats, Rows
from gnnplace.costs.surface import Surface
from gnnplace.costs.tables import Tables

LEAST = 3  # rows of a surface that is tried
Residuals = dict[str, list[Floats]]
Surfaces = Mapping[tuple[str, str, str], Surface]


def calibrate(rows: Mapping[str, Rows]) -> dict[str, Any]:
    """Errors of all relations among tables, as plain data.

    Args:
        rows: Tables by kind.
    """
    tables = Tables(rows, {})
    found: dict[tuple[str, str, str], Surface] = {}
    for kind, mine in rows.items():
        for op, dtype in sorted(set(zip(mine.op.tolist(), mine.dtype.tolist(), strict=True))):
            for name in {op, *_parents(op)}:
                surface = tables.surface(kind, name, dtype)
                if surface is not None and len(surface.at) >= LEAST:
                    found[kind, name, dtype] = surface
    return {
        "local": _local(found),
        "gpu": _gpu(found),
        "kin": _kin(found),
        "dtype": _dtype(found),
        "roofline": _roofline(found),
    }


def _parents(op: str) -> list[str]:
    parent = kin_of(op)
    return [parent, *_parents(parent)] if parent else []


def spread(residual: Floats) -> float:
    """The deviation of a normal law that holds nine in ten where the residuals do."""
    return float(np.quantile(np.abs(residual), 0.9) / NINETY)


def _names(op: str) -> set[str]:
    """Under which an op's residuals are gathered."""
    return {op, group_of(op), FAMILY.get(op, "vector"), "all"}


def _local(found: Surfaces) -> dict[str, list[float]]:
    residuals: Residuals = defaultdict(list)
    distances: Residuals = defaultdict(list)
    for (_, op, _), surface in found.items():
        if len(surface.at) < 2 * LEAST:
            continue
        value, distance = surface(surface.at, own=True)
        for name in _names(op):
            residuals[name].append(value - surface.log_ratio)
            distances[name].append(distance)
    return {
        name: [
            _rounded(spread(np.concatenate(parts))),
            _rounded(float(np.median(np.concatenate(distances[name])))),
        ]
        for name, parts in sorted(residuals.items())
    }


def _gpu(found: Surfaces) -> dict[str, list[float]]:
    """A line through the errors of pairs, lifted until it is above most of them."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (kind, op, dtype), surface in found.items():
        for (other, name, of), theirs in found.items():
            if other == kind or name != op or of != dtype:
                continue
            residual = theirs(surface.at)[0] - surface.log_ratio
            for group in _names(op):
                pairs[group].append((apart(kind, other, op, dtype), spread(residual)))
    result = {}
    for group, points in sorted(pairs.items()):
        distance, error = np.array(points).T
        slope = max(0.0, float(np.polyfit(distance, error, 1)[0])) if len(points) > 4 else 0.0
        base = float(np.quantile(error - slope * distance, 0.6))
        result[group] = [_rounded(max(base, 0.02)), _rounded(slope)]
    return result


def _kin(found: Surfaces) -> dict[str, list[float]]:
    residuals: Residuals = defaultdict(list)
    for (kind, op, dtype), surface in found.items():
        parent = kin_of(op)
        theirs = found.get((kind, parent, dtype))
        if theirs is not None:
            residual = surface.log_ratio - theirs(surface.at)[0]
            residuals[f"{op}<{parent}"].append(residual)
            if parent == POOL:  # for ops of the group without rows
                residuals[group_of(op)].append(residual)
    result = {}
    for name, parts in sorted(residuals.items()):
        bias = float(np.mean([np.median(part) for part in parts]))
        result[name] = [_rounded(bias), _rounded(spread(np.concatenate(parts) - bias))]
    worst = max((error for _, error in result.values()), default=1.0)
    return {**result, "all": [0.0, _rounded(worst)]}


def _dtype(found: Surfaces) -> dict[str, list[float]]:
    residuals: Residuals = defaultdict(list)
    for (kind, op, dtype), surface in found.items():
        for other in OTHER_TYPES.get(dtype, ()):
            theirs = found.get((kind, op, other))
            if theirs is not None:
                for name in _names(op):
                    residuals[name].append(surface.log_ratio - theirs(surface.at)[0])
    result = {
        name: [0.0, _rounded(spread(np.concatenate(parts)))]
        for name, parts in sorted(residuals.items())
    }
    return {"all": [0.0, 1.0], **result}


def _roofline(found: Surfaces) -> dict[str, list[float]]:
    ratios: Residuals = defaultdict(list)
    for (_, op, _), surface in found.items():
        for name in _names(op):
            ratios[name].append(surface.log_ratio)
    result = {}
    for name, parts in sorted(ratios.items()):
        bias = float(np.mean([np.median(part) for part in parts]))
        result[name] = [_rounded(bias), _rounded(spread(np.concatenate(parts) - bias))]
    return result


def _rounded(value: float) -> float:
    return round(value, 4)
