"""Chunks: units in the order of their coordinates, cut into parts of wanted work.

Shared by placers that cut the graph into stages. O(U) a cut.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.search.space import SearchSpace

CONSTRUCTED_OPS = 60_000  # ops of all constructions of a kind


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


def device_counts(most: int) -> list[int]:
    """Numbers of devices to try: all up to 8, then powers of two and the most."""
    return sorted({k for k in range(1, most + 1) if k <= 8 or k & (k - 1) == 0} | {most})


def max_tries(space: SearchSpace) -> int:
    """How many cut moves to try: about half a second of simulations, whatever the size."""
    return int(np.clip(200_000 // space.problem.num_ops, 8, 200))


def most_constructed(space: SearchSpace) -> int:
    """How many numbers of chunks to try at most, whatever the budget: few on large graphs."""
    return max(2, CONSTRUCTED_OPS // space.problem.num_ops)


def move_cut(cuts: IntArray, i: int, delta: int, num_units: int) -> IntArray | None:
    """The cuts with cut ``i`` moved by ``delta`` units; None if it would pass another or stay."""
    moved = cuts.copy()
    moved[i] = np.clip(cuts[i] + delta, 0, num_units)
    return moved if (np.diff(moved) >= 0).all() and moved[i] != cuts[i] else None
