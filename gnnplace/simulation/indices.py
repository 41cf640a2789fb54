"""``Index``: the type of indices in numba kernels.

Numba looks at every signed index whether it counts from the end, though no kernel of ours counts
so; unsigned ones cost it nothing, which makes a simulation half as fast again. An unsigned number
may only be added to unsigned ones (``op + ONE``): with a signed one it becomes a float.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# To a type checker an index is a whole number like any other.
Index: Callable[[Any], int] = np.uint64  # type: ignore[assignment]
ONE = Index(1)
