"""Classes of configurations that have equal rows in a table.

A layer's neighbours see only how the tensor between them is laid out: all configurations of a
convolution that lay its output out alike have equal rows in the table of the next layer. A table
over classes is several times smaller, and so is what elimination makes of it; nothing is lost.

Equal rows are found with a hash of each row (multilinear: Lemire and Kaser, 2014, "Strongly
universal string hashing is fast") and then compared number by number, so a collision only costs the
classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit

from gnnplace.arrays import FloatArray, IndexArray, LongArray


@dataclass(frozen=True, eq=False)
class Classes:
    """A partition of one node's configurations.

    Attributes:
        of: class of each configuration. [K]
        first: one configuration of each class. [classes]
    """

    of: LongArray
    first: LongArray

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, eq=False)
class ClassTable:
    """A table over classes.

    Attributes:
        cells: the cells of each pair of classes.
        rows: classes of the first axis.
        columns: classes of the second axis.
    """

    cells: FloatArray
    rows: Classes
    columns: Classes

    def spread(self) -> FloatArray:
        """Return the table over configurations."""
        rows = self.cells.take(self.rows.of, axis=0)
        return rows.take(self.columns.of, axis=1)


def over_classes(table: FloatArray) -> ClassTable:
    """Return a table over the classes of its equal rows and equal columns."""
    rows, columns = table_classes(table)
    return ClassTable(table[np.ix_(rows.first, columns.first)], rows, columns)


def each_alone(count: int) -> Classes:
    """Return every configuration in a class of its own."""
    numbers = np.arange(count)
    return Classes(numbers, numbers)


def joint(parts: Sequence[Classes]) -> Classes:
    """Return the coarsest partition that is finer than all ``parts``; there is at least one."""
    if len(set(map(id, parts))) == 1:
        return parts[0]
    for part in parts:
        if len(part.first) == len(part.of):
            return part
    code = parts[0].of
    for part in parts[1:]:
        _, code = np.unique(code * len(part) + part.of, return_inverse=True)
    _, first, of = np.unique(code, return_index=True, return_inverse=True)
    return Classes(of, first)


def table_classes(table: FloatArray) -> tuple[Classes, Classes]:
    """Return the classes of equal rows and of equal columns."""
    bits = np.ascontiguousarray(table).view(np.uint64)
    of_rows, of_columns = _hashes(bits, _coefficients(max(bits.shape)))
    rows = _group_equal(of_rows)
    columns = _group_equal(of_columns)
    same_rows, same_columns = _verify_classes(
        bits, rows.first[rows.of], columns.first[columns.of]
    )
    return (
        rows if same_rows else each_alone(len(of_rows)),
        columns if same_columns else each_alone(len(of_columns)),
    )


def _group_equal(hashes: IndexArray) -> Classes:
    _, first, of = np.unique(hashes, return_index=True, return_inverse=True)
    return Classes(of, first)


@lru_cache(maxsize=64)
def _coefficients(count: int) -> IndexArray:
    """Return odd numbers that are always the same. [count]"""
    drawn = np.random.default_rng(0).integers(0, 1 << 63, count, np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)


@njit(cache=True)
def _hashes(
    bits: IndexArray, coefficients: IndexArray
) -> tuple[IndexArray, IndexArray]:
    """Return hashes of rows and of columns."""
    rows, columns = bits.shape
    of_rows = np.zeros(rows, np.uint64)
    of_columns = np.zeros(columns, np.uint64)
    for i in range(rows):
        value = np.uint64(0)
        for j in range(columns):
            mixed = bits[i, j] ^ (bits[i, j] >> np.uint64(31))
            value += mixed * coefficients[j]
            of_columns[j] += mixed * coefficients[i]
        of_rows[i] = value
    return of_rows, of_columns


@njit(cache=True)
def _verify_classes(
    bits: IndexArray, row: LongArray, column: LongArray
) -> tuple[bool, bool]:
    """Return whether every row i equals row ``row[i]``, and every column j column ``column[j]``."""
    rows, columns = bits.shape
    same_rows = True
    same_columns = True
    for i in range(rows):
        for j in range(columns):
            same_rows &= bits[i, j] == bits[row[i], j]
            same_columns &= bits[i, j] == bits[i, column[j]]
    return same_rows, same_columns
