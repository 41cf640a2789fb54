"""New arrays in kernels, each kind made in one place.

``np.zeros`` and its like are compiled anew for every kind of shape, element and set of flags, forty
times in all, and typed at each of two hundred calls. Calls of these kernels are neither, and LLVM
makes them the same code.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IndexArray, IntArray, LongArray, SingleArray
from gnnplace.graph.jit import inner


@inner()
def empty_floats(size: int) -> FloatArray:
    """Floats, not set. [size]"""
    return np.empty(size, np.float64)


@inner()
def zero_floats(size: int) -> FloatArray:
    """Floats, all 0. [size]"""
    result = empty_floats(size)
    for i in range(size):
        result[i] = 0.0
    return result


@inner()
def full_floats(size: int, value: float) -> FloatArray:
    """Floats, all ``value``. [size]"""
    result = empty_floats(size)
    for i in range(size):
        result[i] = value
    return result


@inner()
def empty_ints(size: int) -> IntArray:
    """32-bit whole numbers, not set. [size]"""
    return np.empty(size, np.int32)


@inner()
def zero_ints(size: int) -> IntArray:
    """32-bit whole numbers, all 0. [size]"""
    result = empty_ints(size)
    for i in range(size):
        result[i] = 0
    return result


@inner()
def full_ints(size: int, value: int) -> IntArray:
    """32-bit whole numbers, all ``value``. [size]"""
    result = empty_ints(size)
    for i in range(size):
        result[i] = value
    return result


@inner()
def empty_longs(size: int) -> LongArray:
    """64-bit whole numbers, not set. [size]"""
    return np.empty(size, np.int64)


@inner()
def zero_longs(size: int) -> LongArray:
    """64-bit whole numbers, all 0. [size]"""
    result = empty_longs(size)
    for i in range(size):
        result[i] = 0
    return result


@inner()
def empty_indices(size: int) -> IndexArray:
    """Indices, not set. [size]"""
    return np.empty(size, np.uint64)


@inner()
def full_indices(size: int, value: int) -> IndexArray:
    """Indices, all ``value``. [size]"""
    result = empty_indices(size)
    for i in range(size):
        result[i] = value
    return result


@inner()
def empty_singles(size: int) -> SingleArray:
    """Single floats, not set. [size]"""
    return np.empty(size, np.float32)


@inner()
def zero_singles(size: int) -> SingleArray:
    """Single floats, all 0. [size]"""
    result = empty_singles(size)
    for i in range(size):
        result[i] = 0.0
    return result


@inner()
def empty_flags(size: int) -> BoolArray:
    """Flags, not set. [size]"""
    return np.empty(size, np.bool_)


@inner()
def zero_flags(size: int) -> BoolArray:
    """All False. [size]"""
    result = empty_flags(size)
    for i in range(size):
        result[i] = False
    return result


@inner()
def empty_table(rows: int, columns: int) -> FloatArray:
    """Floats, not set. [rows, columns]"""
    return np.empty((rows, columns), np.float64)


@inner()
def zero_table(rows: int, columns: int) -> FloatArray:
    """Floats, all 0. [rows, columns]"""
    return np.zeros((rows, columns), np.float64)


@inner()
def full_table(rows: int, columns: int, value: float) -> FloatArray:
    """Floats, all ``value``. [rows, columns]"""
    result = empty_table(rows, columns)
    for i in range(rows):
        for j in range(columns):
            result[i, j] = value
    return result


@inner()
def empty_int_table(rows: int, columns: int) -> IntArray:
    """32-bit whole numbers, not set. [rows, columns]"""
    return np.empty((rows, columns), np.int32)


@inner()
def zero_int_table(rows: int, columns: int) -> IntArray:
    """32-bit whole numbers, all 0. [rows, columns]"""
    return np.zeros((rows, columns), np.int32)


@inner()
def empty_single_table(rows: int, columns: int) -> SingleArray:
    """Single floats, not set. [rows, columns]"""
    return np.empty((rows, columns), np.float32)


@inner()
def zero_single_table(rows: int, columns: int) -> SingleArray:
    """Single floats, all 0. [rows, columns]"""
    return np.zeros((rows, columns), np.float32)
