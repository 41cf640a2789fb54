"""``Found``: what a search hands back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


@dataclass(frozen=True)
class Found:
    """A placement as a search hands it back; it may not fit in memory yet.

    Attributes:
        device: device of each op. [n]
        order: all ops; a device runs its ops in this order. [n]
        note: a remark in a few words.
        bound: seconds that the search proved no placement to be below, if it proves anything.
    """

    device: IntArray
    order: IntArray
    note: str = ""
    bound: float = 0.0
