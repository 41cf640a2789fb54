"""Configurations: how many parts each dimension of an operation is cut into."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import LongArray
from gnnplace.sharding.layers import Operation


class Space(NamedTuple):
    """Which splits are allowed.

    Attributes:
        exactly: only those that use all devices, where any does.
        powers_of_two: a dimension is cut into 1, 2, 4 … parts; else into any divisor of the
            number of devices.
    """

    exactly: bool = False
    powers_of_two: bool = False


ANY = Space()


@lru_cache(maxsize=4096)
def configurations(operation: Operation, devices: int, space: Space = ANY) -> LongArray:
    """All splits whose product is at most ``devices``. [K, dimensions]

    A dimension is never cut into more parts than it has positions. The first configuration splits
    nothing, if that is allowed.

    Args:
        operation: whose dimensions are split.
        devices: there are.
        space: which splits are allowed.
    """
    parts = [k for k in range(1, devices + 1) if devices % k == 0]
    if space.powers_of_two:
        parts = [1 << k for k in range(devices.bit_length())]
    rows, used = np.ones((1, 0), np.int64), np.ones(1, np.int64)
    for dimension in operation.dimensions:
        allowed = np.array([k for k in parts if k <= (dimension.extent if dimension.split else 1)])
        products = used[:, None] * allowed
        old, new = np.nonzero(products <= devices)
        rows, used = np.column_stack([rows[old], allowed[new]]), products[old, new]
    if space.exactly and (used == devices).any():
        rows = rows[used == devices]
    return rows[np.lexsort(rows.T[::-1])]


def data_parallel(operation: Operation, devices: int, space: Space = ANY) -> int:
    """Index of the configuration that splits the batch the most and nothing else."""
    rows = configurations(operation, devices, space)
    batch = [d.name for d in operation.dimensions].index("batch")
    others = rows.prod(axis=1) // rows[:, batch]
    return int(np.lexsort((-rows[:, batch], others))[0])


def in_words(operation: Operation, split: LongArray) -> str:
    """Such as ``heads over 4, batch over 2``; the largest split first."""
    names = [d.name for d in operation.dimensions]
    cut = sorted(((int(k), name) for k, name in zip(split, names, strict=True) if k > 1),
                 key=lambda entry: (-entry[0], entry[1]))  # fmt: skip
    return ", ".join(f"{name} over {k}" for k, name in cut) or "whole on every device"
