"""The min-plus product: ``C[i, j] = min over k of A[i, k] + B[k, j]``, values only.

The inner loop runs over j and is a chain of adds and minima that LLVM turns into vector code; four
k at a time keep C in registers between loads. No argmin is kept: the traceback recomputes it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gnnplace.arrays import FloatArray

COLUMNS = 512  # Columns of B at once, so that the rows in use stay in the cache.


@njit(cache=True, boundscheck=False, fastmath={"nnan", "ninf", "nsz"})
def min_plus(a: FloatArray, b: FloatArray) -> FloatArray:
    """The min-plus product of ``a`` [R, K] and ``b`` [K, S]. [R, S]"""
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    c = np.full((rows, columns), np.inf)
    whole = inner - inner % 4
    for left in range(0, columns, COLUMNS):
        right = min(columns, left + COLUMNS)
        for i in range(rows):
            out = c[i, left:right]
            for k in range(0, whole, 4):
                a0, a1, a2, a3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
                b0, b1 = b[k, left:right], b[k + 1, left:right]
                b2, b3 = b[k + 2, left:right], b[k + 3, left:right]
                for j in range(right - left):
                    low = min(a0 + b0[j], a1 + b1[j])
                    high = min(a2 + b2[j], a3 + b3[j])
                    out[j] = min(out[j], min(low, high))
            for k in range(whole, inner):
                first, row = a[i, k], b[k, left:right]
                for j in range(right - left):
                    out[j] = min(out[j], first + row[j])
    return c


@njit(cache=True)
def min_plus_each(left: FloatArray, right: FloatArray) -> FloatArray:
    """The min-plus products of ``left`` [W, R, K] and ``right`` [W, K, S], one by one. [W, R, S]"""
    c = np.empty((left.shape[0], left.shape[1], right.shape[2]))
    for w in range(left.shape[0]):
        c[w] = min_plus(left[w], right[w])
    return c
