"""Arrays in kernels: their indices, new ones, copies and orders, each compiled once and quickly.

NumPy's own words for them are compiled anew for every kind of shape, element and set of flags, with
shape checks, their messages and generic iterators: forty kinds of ``np.zeros`` and its like, typed
at each of two hundred calls, seconds for one ``argsort``. These plain loops take a tenth of one,
and LLVM makes them the same code.

``Index`` is the type of indices. Numba looks at every signed one whether it counts from the end,
though no kernel of ours counts so; unsigned ones cost it nothing, which makes a simulation half as
fast again. An unsigned number may only be added to unsigned ones (``op + ONE``): with a signed one
it becomes a float.

Binary heaps in flat arrays are several times as fast as ``heapq`` on lists of tuples. A heap of
``count`` items lies in ``keys[low : low + count]`` and ``items[low : low + count]``: the least key
first, the least item among equal keys. Both functions take O(log count).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from gnnplace.arrays import (
    BoolArray,
    FloatArray,
    IndexArray,
    IntArray,
    IntLike,
    LongArray,
    SingleArray,
)
from gnnplace.graph.jit import empty, inner

# To a type checker an index is a whole number like any other.
Index: Callable[[Any], int] = np.uint64  # type: ignore[assignment]
ONE = Index(1)
MANY = 1 << 11  # keys that are sorted by digits
DIGIT = 8  # bits
LOW = Index((1 << DIGIT) - 1)
SIGN = Index(1 << 63)
FLAGS = types.boolean[::1]  # arrays, as numba types them
FLAG_TABLE = types.boolean[:, ::1]
FLOATS = types.float64[::1]
FLOAT_TABLE = types.float64[:, ::1]
SINGLES = types.float32[::1]
SINGLE_TABLE = types.float32[:, ::1]
INTS = types.int32[::1]
INT_TABLE = types.int32[:, ::1]
LONGS = types.int64[::1]
INDICES = types.uint64[::1]
RUN = 16  # entries that are sorted by insertion before runs are merged


@inner()
def empty_floats(size: int) -> FloatArray:
    """Return floats that are not set. [size]"""
    return empty(size, np.float64, FLOATS)


@inner()
def zero_floats(size: int) -> FloatArray:
    """Return floats, all 0. [size]"""
    result = empty_floats(size)
    for i in range(size):
        result[i] = 0.0
    return result


@inner()
def full_floats(size: int, value: float) -> FloatArray:
    """Return floats, all ``value``. [size]"""
    result = empty_floats(size)
    for i in range(size):
        result[i] = value
    return result


@inner()
def empty_ints(size: int) -> IntArray:
    """Return 32-bit integers that are not set. [size]"""
    return empty(size, np.int32, INTS)


@inner()
def zero_ints(size: int) -> IntArray:
    """Return 32-bit integers, all 0. [size]"""
    result = empty_ints(size)
    for i in range(size):
        result[i] = 0
    return result


@inner()
def full_ints(size: int, value: int) -> IntArray:
    """Return 32-bit integers, all ``value``. [size]"""
    result = empty_ints(size)
    for i in range(size):
        result[i] = value
    return result


@inner()
def empty_longs(size: int) -> LongArray:
    """Return 64-bit integers that are not set. [size]"""
    return empty(size, np.int64, LONGS)


@inner()
def zero_longs(size: int) -> LongArray:
    """Return 64-bit integers, all 0. [size]"""
    result = empty_longs(size)
    for i in range(size):
        result[i] = 0
    return result


@inner()
def empty_indices(size: int) -> IndexArray:
    """Return unsigned 64-bit integers that are not set. [size]"""
    return empty(size, np.uint64, INDICES)


@inner()
def full_indices(size: int, value: int) -> IndexArray:
    """Return unsigned 64-bit integers, all ``value``. [size]"""
    result = empty_indices(size)
    for i in range(size):
        result[i] = value
    return result


@inner()
def empty_singles(size: int) -> SingleArray:
    """Return 32-bit floats that are not set. [size]"""
    return empty(size, np.float32, SINGLES)


@inner()
def zero_singles(size: int) -> SingleArray:
    """Return 32-bit floats, all 0. [size]"""
    result = empty_singles(size)
    for i in range(size):
        result[i] = 0.0
    return result


@inner()
def empty_flags(size: int) -> BoolArray:
    """Return booleans that are not set. [size]"""
    return empty(size, np.bool_, FLAGS)


@inner()
def zero_flags(size: int) -> BoolArray:
    """Return booleans, all False. [size]"""
    result = empty_flags(size)
    for i in range(size):
        result[i] = False
    return result


@inner()
def zero_flag_table(rows: int, columns: int) -> BoolArray:
    """Return booleans, all False. [rows, columns]"""
    result: BoolArray = empty((rows, columns), np.bool_, FLAG_TABLE)
    for i in range(rows):
        for j in range(columns):
            result[i, j] = False
    return result


@inner()
def empty_table(rows: int, columns: int) -> FloatArray:
    """Return floats that are not set. [rows, columns]"""
    return empty((rows, columns), np.float64, FLOAT_TABLE)


@inner()
def zero_table(rows: int, columns: int) -> FloatArray:
    """Return floats, all 0. [rows, columns]"""
    result = empty_table(rows, columns)
    for i in range(rows):
        for j in range(columns):
            result[i, j] = 0.0
    return result


@inner()
def full_table(rows: int, columns: int, value: float) -> FloatArray:
    """Return floats, all ``value``. [rows, columns]"""
    result = empty_table(rows, columns)
    for i in range(rows):
        for j in range(columns):
            result[i, j] = value
    return result


@inner()
def empty_int_table(rows: int, columns: int) -> IntArray:
    """Return 32-bit integers that are not set. [rows, columns]"""
    return empty((rows, columns), np.int32, INT_TABLE)


@inner()
def zero_int_table(rows: int, columns: int) -> IntArray:
    """Return 32-bit integers, all 0. [rows, columns]"""
    result = empty_int_table(rows, columns)
    for i in range(rows):
        for j in range(columns):
            result[i, j] = 0
    return result


@inner()
def zero_single_table(rows: int, columns: int) -> SingleArray:
    """Return 32-bit floats, all 0. [rows, columns]"""
    result: SingleArray = empty((rows, columns), np.float32, SINGLE_TABLE)
    for i in range(rows):
        for j in range(columns):
            result[i, j] = 0.0
    return result


@inner(_nrt=False)
def copy_to(target: NDArray[Any], values: NDArray[Any]) -> None:
    """Write ``values`` over the first entries of ``target``."""
    for i in range(len(values)):
        target[i] = values[i]


@inner(_nrt=False)
def copy_rows(target: NDArray[Any], values: NDArray[Any]) -> None:
    """Write the rows of ``values`` over the beginnings of the first rows of ``target``."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            target[i, j] = values[i, j]


@inner(_nrt=False)
def greatest(values: FloatArray) -> float:
    """Return the largest of at least one value. None of them may be NaN."""
    largest = values[0]
    for i in range(1, len(values)):
        largest = max(largest, values[i])
    return largest


@inner()
def ascending(keys: FloatArray) -> IntArray:
    """Return indices of ``keys`` from the least to the largest, equal ones as they are listed. [n]

    Many are sorted digit by digit, fewer by merging; none is nan.
    """
    if len(keys) >= MANY:
        return sort_by_digits(keys)
    return sort_by_merging(keys)


@inner()
def sort_by_digits(keys: FloatArray) -> IntArray:
    """Return what ``ascending`` does, by radix sort in O(n).

    Sorts by ``DIGIT`` bits of the keys at a time, the lowest first.
    """
    n = len(keys)
    bits = sortable(keys)
    spare_bits = empty_indices(n)
    order = empty_ints(n)
    spare = empty_ints(n)
    for i in range(n):
        order[i] = i
    for shift in range(0, 64, DIGIT):
        at = first_places(bits, Index(shift))
        if len(at) == 0:
            continue
        for i in range(n):
            digit = (bits[i] >> Index(shift)) & LOW
            place = at[digit]
            spare_bits[place], spare[place] = bits[i], order[i]
            at[digit] = place + ONE
        bits, spare_bits = spare_bits, bits
        order, spare = spare, order
    return order


@inner()
def sortable(keys: FloatArray) -> IndexArray:
    """Return unsigned integers that sort as ``keys``: their bits, adapted where negative. [n]"""
    copied = empty_floats(len(keys))
    for i in range(len(keys)):
        copied[i] = keys[i] + 0.0  # -0 is 0.
    bits = copied.view(np.uint64)
    for i in range(len(bits)):
        bits[i] = ~bits[i] if bits[i] >= SIGN else bits[i] | SIGN
    return bits


@inner()
def first_places(bits: IndexArray, shift: int) -> IndexArray:
    """Return where keys with each digit begin; nothing where all have the same. [2 ** DIGIT]"""
    at = full_indices(1 << DIGIT, 0)
    for i in range(len(bits)):
        at[(bits[i] >> shift) & LOW] += ONE
    if at[(bits[0] >> shift) & LOW] == Index(len(bits)):
        return empty_indices(0)
    total = Index(0)
    for digit in range(len(at)):
        count = at[digit]
        at[digit] = total
        total += count
    return at


@inner()
def sort_by_merging(keys: FloatArray) -> IntArray:
    """Return what ``ascending`` does, by a merge sort from the bottom up.

    Runs that are in order already are not merged, so keys that are nearly sorted take little more
    than O(n); others O(n log n).
    """
    n = len(keys)
    order = empty_ints(n)
    spare = empty_ints(n)
    for i in range(n):
        at = i
        key = keys[i]
        low = i - i % RUN
        while at > low and keys[order[at - 1]] > key:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    width = RUN
    while width < n:
        for low in range(0, n - width, 2 * width):
            merge(keys, order, spare, low, low + width, min(low + 2 * width, n))
        width *= 2
    return order


@inner(_nrt=False)
def merge(
    keys: FloatArray, order: IntArray, spare: IntArray, low: int, middle: int, high: int
) -> None:
    """Merge ``order[low:middle]`` and ``order[middle:high]``, both ascending by ``keys``."""
    if keys[order[middle - 1]] <= keys[order[middle]]:
        return
    for k in range(low, middle):
        spare[k] = order[k]
    first = low
    second = middle
    at = low
    while first < middle:
        if second < high and keys[order[second]] < keys[spare[first]]:
            order[at] = order[second]
            second += 1
        else:
            order[at] = spare[first]
            first += 1
        at += 1


@inner(_nrt=False)
def heap_push(
    keys: FloatArray,
    items: IntArray,
    low: IntLike,
    count: IntLike,
    key: float,
    item: IntLike,
) -> None:
    """Add an item to a heap that has ``count`` and room for one more."""
    base = Index(low)
    at = Index(count)
    while at > Index(0):
        above = (at - ONE) >> ONE
        parent_key = keys[base + above]
        if parent_key < key or (parent_key == key and items[base + above] < item):
            break
        keys[base + at], items[base + at] = parent_key, items[base + above]
        at = above
    keys[base + at] = key
    items[base + at] = item


@inner(_nrt=False)
def heap_pop(keys: FloatArray, items: IntArray, low: IntLike, count: IntLike) -> int:
    """Take the first item off a heap that has ``count`` of them, at least one."""
    base = Index(low)
    last = Index(count) - ONE
    first = items[base]
    key = keys[base + last]
    item = items[base + last]
    at = Index(0)
    while True:
        below = at + at + ONE
        if below >= last:
            break
        child = base + below
        sibling = child + ONE
        if below + ONE < last and (
            keys[sibling] < keys[child]
            or (keys[sibling] == keys[child] and items[sibling] < items[child])
        ):
            below += ONE
        child_key = keys[base + below]
        if key < child_key or (key == child_key and item < items[base + below]):
            break
        keys[base + at], items[base + at] = child_key, items[base + below]
        at = below
    keys[base + at] = key
    items[base + at] = item
    return first
