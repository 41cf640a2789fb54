"""Chunks: units in the order of their coordinates, cut into parts of wanted work.

Shared by ``contiguous`` and ``interleaved``. O(U) a cut.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.placers.search_space import SearchSpace

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]


def even_cuts(space: SearchSpace, shares: FloatArray) -> IntArray:
    """Where to cut the units in coordinate order so that chunks have the given shares of work.

    Args:
        space: the search space.
        shares: wanted shares of the work, any positive scale. [C]

    Returns:
        Index of the first unit of each chunk but the first, ascending. [C - 1]
    """
    middle = np.cumsum(space.mean_work[space.unit_order])
    middle = middle - space.mean_work[space.unit_order] / 2
    total = space.mean_work.sum()
    wanted = np.cumsum(shares)[:-1] / shares.sum() * total
    return np.searchsorted(middle, wanted).astype(np.int32)


def chunk_of_unit(space: SearchSpace, cuts: IntArray) -> IntArray:
    """Chunk of each unit. [U]"""
    chunk = np.empty(space.problem.num_units, dtype=np.int32)
    index = np.arange(space.problem.num_units)
    chunk[space.unit_order] = np.searchsorted(cuts, index, side="right")
    return chunk


def device_speeds(space: SearchSpace) -> FloatArray:
    """Relative speed of each device on the units it may have; 0 if none. [D]"""
    allowed = space.problem.unit_allowed
    own = np.where(allowed, space.work, 0.0).sum(axis=0)
    mean = np.where(allowed, space.mean_work[:, None], 0.0).sum(axis=0)
    return np.where(own > 0, mean / np.maximum(own, 1e-300), allowed.any(axis=0).astype(float))


def device_ranking(space: SearchSpace) -> IntArray:
    """Devices that can run something, the fastest first, as listed among equals. [<= D]"""
    speed = device_speeds(space)
    ranking = np.argsort(-np.round(speed, 9), kind="stable")
    return ranking[speed[ranking] > 0].astype(np.int32)
