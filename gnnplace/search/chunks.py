"""Chunks: units in the order of their coordinates, cut into parts of wanted work.

Shared by ``contiguous`` and ``interleaved``. O(U) a cut.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.search.space import SearchSpace

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


def device_ranking(space: SearchSpace) -> IntArray:
    """Devices that can run something, the fastest first, as listed among equals. [<= D]"""
    speed = space.speed
    ranking = np.argsort(-np.round(speed, 9), kind="stable")
    return ranking[speed[ranking] > 0].astype(np.int32)
