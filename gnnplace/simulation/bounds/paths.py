"""A longest path of groups of copies through one of them. Complexity: O(n + edges log edges)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.simulation.bounds.relaxation import Relaxation

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


def path_through(relaxation: Relaxation, middle: int, allowed: BoolArray) -> IntArray:
    """Groups that feed each other, back and forth from ``middle`` where it is longest. [p]

    Args:
        relaxation: whose heads and tails say what is long.
        middle: a group.
        allowed: edges that the path may take. [E]
    """
    copies, first = relaxation.copies, relaxation.copies.begin[:-1]
    source, target = copies.source[allowed], copies.target[allowed]
    head, tail = (least[first] + relaxation.work for least in (relaxation.head, relaxation.tail))
    back = _walk(middle, target, source, head)
    return np.array([*back[::-1], middle, *_walk(middle, source, target, tail)], dtype=np.int32)


def _walk(start: int, near: IntArray, far: IntArray, value: FloatArray) -> list[int]:
    """Groups after ``start``, each the one of the largest value that an edge leads to."""
    ascending = np.lexsort((value[far], near))
    after = np.full(len(value), -1)
    after[near[ascending]] = far[ascending]  # Of all that a group leads to the last stays.
    found = [start]
    while after[found[-1]] >= 0:
        found.append(int(after[found[-1]]))
    return found[1:]
