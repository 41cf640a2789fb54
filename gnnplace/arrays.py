"""Arrays as annotations name them, by what their entries are; shapes stand in docstrings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
IndexArray = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]
IntLike = int | np.integer[Any]
"""A whole number of Python or of an array; a kernel takes either."""

TINY = 1e-300
"""Takes the place of a zero that would be divided by."""
