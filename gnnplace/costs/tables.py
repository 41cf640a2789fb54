"""``CostTables``: measured rows by kind of GPU, surfaces fitted to them, and expected errors.

Local regression over measured shapes predicts the ratio of an op's time to its roofline.

A surface holds, for one op, type and device, points in the space of log2 of its sizes and the log
of measured seconds over the roofline's. A query is answered by a weighted linear fit to its K
nearest points (Cleveland and Devlin, JASA 1988: LOESS of degree one, here with Shepard's weights,
which let a point that is at the query answer it), with a ridge on the slopes so that few or
collinear points give their weighted mean:

    w_i = (d_i^2 + h^2)^-2,  minimise sum_i w_i (y_i - a - b (x_i - x))^2 + r sum(w) |b|^2

and the answer is a. Distances are in octaves. O((P + Q) log P + Q K d^2) for P points, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray
from gnnplace.costs.kin import CORRECTED, POOL, POOLED, find_kin
from gnnplace.costs.rows import Rows, read_rows, roofline
from gnnplace.files import read_json

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

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
        user_errors: The errors of the user's own rows alone, by the kinds that have some.
        candidates: The candidates of `gnnplace.costs.prediction` that were asked for.
    """

    rows: Mapping[str, Rows]
    errors: Mapping[str, Any]
    user_errors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    candidates: dict[Key, list[Any]] = field(default_factory=dict)
    _surfaces: dict[Key, Surface | None] = field(default_factory=dict)

    def surface(self, kind: str, op: str, dtype: str) -> Surface | None:
        """Return the surface of one op, or None if it has no points."""
        key = (kind, op, dtype)
        if key not in self._surfaces:
            self._surfaces[key] = self._made(*key)
        return self._surfaces[key]

    def list_errors(self, kind: str, what: str) -> Mapping[str, list[float]]:
        """Return the errors of a relation by op, for rows of a kind.

        Errors of the user's own rows come first where there are any. For a CPU they stand alone,
        because errors of GPUs say nothing of it.
        """
        shipped_errors: Mapping[str, list[float]] = self.errors[what]
        user_errors: Mapping[str, list[float]] = self.user_errors.get(kind, {}).get(
            what, {}
        )
        if not user_errors.get("all"):
            return shipped_errors
        if kind == "cpu":
            return user_errors
        return {**shipped_errors, **user_errors}

    def _made(self, kind: str, op: str, dtype: str) -> Surface | None:
        rows = self.rows.get(kind)
        if rows is None:
            return None
        if op == POOL:
            named = np.isin(rows.op, sorted(POOLED))
        else:
            named = rows.op == op
        index = np.flatnonzero(named & (rows.dtype == dtype))
        if not index.size:
            return None
        selected = rows.take(index)
        log_ratio = np.log(selected.seconds / roofline(kind, selected))
        if op in CORRECTED:
            base = self.surface(kind, find_kin(op), dtype)
        else:
            base = None
        if base is None:
            return Surface(selected.at, log_ratio)
        return Correction(selected.at, log_ratio, base)


@cache
def load_shipped_tables() -> CostTables:
    """Return the tables that come with the package; see its `tables/README.md`."""
    rows: dict[str, Rows] = {}
    for path in sorted(FOLDER.glob(f"*{ENDING}")):
        rows |= read_rows(path)
    return CostTables(rows, read_json(FOLDER / ERRORS))


NEIGHBOURS = 20
RIDGE = 0.02  # r: ridge on the slopes, relative to the sum of weights
LEAST_RIDGE = 1e-9  # keeps the equations of far points solvable
NEAR = 0.5  # h^2: octaves squared within which points count alike
REACH = 6.0  # octaves beyond which slopes are not followed
MARGIN = 0.3  # natural log by which an answer may leave the range of its nearest points


@dataclass(frozen=True, eq=False)
class Surface:
    """Points of one op, type and device.

    Attributes:
        at: The coordinates of the points, in octaves. [points, dimensions]
        log_ratio: Natural log of measured over roofline seconds. [points]
    """

    at: FloatArray
    log_ratio: FloatArray

    @cached_property
    def tree(self) -> cKDTree:
        """Return the points in a tree that finds the nearest."""
        from scipy.spatial import cKDTree  # late: a tenth of a second

        return cKDTree(self.at)

    def __call__(
        self, query: FloatArray, *, own: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Return log ratios at other places, and how far the nearest points are.

        Args:
            query: The coordinates of the places. [queries, dimensions]
            own: The queries are points of this surface; a point does not answer for itself.

        Returns:
            Log ratio [queries]; octaves to the nearest points, a mean of the first three [queries].
        """
        count = min(NEIGHBOURS, len(self.at) - own)
        if count < 1:
            return np.zeros(len(query)), np.full(len(query), np.inf)
        nearest = self.tree.query(query, k=list(range(1 + own, count + 1 + own)))
        distance, index = (np.asarray(part).reshape(len(query), -1) for part in nearest)
        value = self._fit(query, distance, index)
        return value, distance[:, : min(3, count)].mean(axis=1)

    def _fit(
        self, query: FloatArray, distance: FloatArray, index: NDArray[np.intp]
    ) -> FloatArray:
        """Return the log ratio of each query by the weighted fit of the module's text. [queries]

        Args:
            query: The coordinates of the queries, Q of them. [Q, dimensions]
            distance: Octaves to the K nearest points of each. [Q, K]
            index: The numbers of these points. [Q, K]
        """
        weight = (distance**2 + NEAR) ** -2.0
        near = self.log_ratio[index]

        # One row for each point: 1 for the constant, and its offset from the query for the slopes.
        offset = np.clip(self.at[index] - query[:, None, :], -REACH, REACH)
        ones = np.ones((*index.shape, 1))
        design = np.concatenate([ones, offset], axis=2)
        weighted = (design * weight[:, :, None]).transpose(0, 2, 1)

        # The normal equations, with a ridge on the slopes. The constant is the answer.
        normal = weighted @ design
        right = weighted @ near[:, :, None]
        ridge = RIDGE * weight.sum(axis=1) + LEAST_RIDGE
        slopes = np.arange(1, normal.shape[1])
        normal[:, slopes, slopes] += ridge[:, None]
        answer: FloatArray = np.linalg.solve(normal, right)[:, 0, 0]
        lowest = near.min(axis=1) - MARGIN
        highest = near.max(axis=1) + MARGIN
        return np.clip(answer, lowest, highest)


@dataclass(frozen=True, eq=False)
class Correction(Surface):
    """Points that are few, over a surface of an op that is alike and has many.

    Only how far they are from that surface is fitted, so that between them its shape holds.

    Attributes:
        base: The surface of the other op, at the same coordinates.
    """

    base: Surface

    @cached_property
    def residual(self) -> Surface:
        """Return the surface of what the base does not explain."""
        return Surface(self.at, self.log_ratio - self.base(self.at)[0])

    def __call__(
        self, query: FloatArray, *, own: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Return log ratios and distances at other places, as a surface does."""
        off, distance = self.residual(query, own=own)
        return self.base(query)[0] + off, distance
