"""Local regression over measured shapes: how far an op is from its roofline, near its shape.

A surface holds, for one op, type and device, points in the space of log2 of its sizes and the log
of measured seconds over the roofline's. A query is answered by a weighted linear fit to its K
nearest points (Cleveland and Devlin, JASA 1988: LOESS of degree one, here with Shepard's weights,
which let a point that is at the query answer it), with a ridge on the slopes so that few or
collinear points give their weighted mean:

    w_i = (d_i^2 + h^2)^-2,  minimise sum_i w_i (y_i - a - b (x_i - x))^2 + r sum(w) |b|^2

and the answer is a. Distances are in octaves. O((P + Q) log P + Q K d^2) for P points, Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from gnnplace.arrays import FloatArray

NEIGHBOURS = 20
RIDGE = 0.02
NEAR = 0.5  # h^2: octaves squared within which points count alike
REACH = 6.0  # octaves beyond which slopes are not followed


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
        """The points, to find the nearest of."""
        return cKDTree(self.at)

    def __call__(self, query: FloatArray, *, own: bool = False) -> tuple[FloatArray, FloatArray]:
        """Log ratios at other places, and how far the nearest points are.

        Args:
            query: The coordinates of the places. [queries, dimensions]
            own: The queries are points of this surface; a point does not answer for itself.

        Returns:
            Log ratio [queries]; octaves to the nearest points, a mean of the first three [queries].
        """
        count = min(NEIGHBOURS, len(self.at) - own)
        if count < 1:
            return np.zeros(len(query)), np.full(len(query), np.inf)
        found = self.tree.query(query, k=list(range(1 + own, count + 1 + own)))
        distance, index = (np.asarray(part).reshape(len(query), -1) for part in found)
        value = self._fit(query, distance, index)
        return value, distance[:, : min(3, count)].mean(axis=1)

    def _fit(self, query: FloatArray, distance: FloatArray, index: NDArray[np.intp]) -> FloatArray:
        weight = (distance**2 + NEAR) ** -2.0
        offset = np.clip(self.at[index] - query[:, None, :], -REACH, REACH)
        design = np.concatenate([np.ones((*index.shape, 1)), offset], axis=2)
        weighted = design * weight[:, :, None]
        normal = weighted.transpose(0, 2, 1) @ design
        slopes = np.arange(1, normal.shape[1])
        normal[:, slopes, slopes] += RIDGE * weight.sum(axis=1)[:, None] + 1e-9
        right = weighted.transpose(0, 2, 1) @ self.log_ratio[index][:, :, None]
        answer: FloatArray = np.linalg.solve(normal, right)[:, 0, 0]
        near = self.log_ratio[index]
        return np.clip(answer, near.min(axis=1) - 0.3, near.max(axis=1) + 0.3)


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
        """What the base does not explain."""
        return Surface(self.at, self.log_ratio - self.base(self.at)[0])

    def __call__(self, query: FloatArray, *, own: bool = False) -> tuple[FloatArray, FloatArray]:
        """As a surface answers."""
        off, distance = self.residual(query, own=own)
        return self.base(query)[0] + off, distance
