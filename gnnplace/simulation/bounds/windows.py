"""Windows (after Fernandez and Bussell, 1973): work between heads and tails of paths.

Ops that cannot start before ``a`` and leave at least ``b`` seconds of path after them do their work
within step time - a - b. Complexity: O(n log n + g^2) with g thresholds.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.simulation.bounds.fill import thresholds


def windows(head: FloatArray, tail: FloatArray, share: FloatArray) -> float:
    """The bound in seconds.

    Args:
        head: least seconds before each job. [n]
        tail: least seconds after it. [n]
        share: its share of the work bound, in seconds. [n]
    """
    a, b = thresholds(head), thresholds(tail)
    row = np.searchsorted(a, head, side="right") - 1
    column = np.searchsorted(b, tail, side="right") - 1
    work = np.bincount(row * len(b) + column, share, len(a) * len(b)).reshape(len(a), len(b))
    inside = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    value = np.where(inside > 0, a[:, None] + b[None, :] + inside, 0.0)
    return float(value.max())
