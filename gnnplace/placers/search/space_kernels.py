"""Loops over ops and edges that ``SearchSpace`` needs, in numba. O(n D + edges log edges)."""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph.jit import kernel
from gnnplace.graph.kernel_arrays import empty_ints, full_floats, full_ints, zero_floats, zero_ints
from gnnplace.graph.kernels import grouped


@kernel
def mean_of_finite(rows: FloatArray) -> FloatArray:
    """Mean of the finite entries of each row, 0 where there is none. [n, D] to [n]"""
    result = zero_floats(len(rows))
    for i in range(len(rows)):
        total, count = 0.0, 0
        for value in rows[i]:
            if value < np.inf:
                total += value
                count += 1
        if count > 0:
            result[i] = total / count
    return result


@kernel
def sum_of_finite(rows: FloatArray) -> FloatArray:
    """Sum of the finite entries of each column. [n, D] to [D]"""
    total = zero_floats(rows.shape[1])
    for i in range(len(rows)):
        for d in range(len(total)):
            if rows[i, d] < np.inf:
                total[d] += rows[i, d]
    return total


@kernel
def follow_forward(
    order: IntArray,
    offset: IntArray,
    predecessor: IntArray,
    forward: BoolArray,
    place: FloatArray,
) -> FloatArray:
    """Coordinates of all ops, from those of forward ops in ``place``. [n]

    Another op takes the largest of its forward inputs', or the smallest of its other inputs', or
    keeps its own if it has no input. ``order`` is topological; inputs of ``op`` are
    ``predecessor[offset[op] : offset[op + 1]]``.
    """
    result = place.copy()
    for op in order:
        if forward[op] or offset[op] == offset[op + 1]:
            continue
        most, least = -1.0, np.inf
        for k in range(offset[op], offset[op + 1]):
            other = predecessor[k]
            if forward[other]:
                most = max(most, result[other])
            least = min(least, result[other])
        result[op] = most if most >= 0.0 else least
    return result


@kernel
def flows_between(
    source: IntArray, target: IntArray, size: FloatArray, count: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Bytes between units both ways: offset, neighbours in ascending order, bytes in, bytes out.

    Args:
        source: unit that each edge comes from; edges within a unit are left out. [E]
        target: unit that each edge goes to. [E]
        size: bytes of each edge. [E]
        count: number of units U.

    Returns:
        Where each unit's neighbours start [U + 1], the neighbours, bytes from and bytes to each of
        them, -1 where no tensor goes that way.
    """
    offset = zero_ints(count + 1)
    for k in range(len(source)):
        if source[k] != target[k]:
            offset[source[k] + 1] += 1
            offset[target[k] + 1] += 1
    for u in range(count):
        offset[u + 1] += offset[u]
    at = offset[:-1].copy()
    end, edge = empty_ints(offset[-1]), empty_ints(offset[-1])
    for k in range(len(source)):
        if source[k] != target[k]:
            end[at[source[k]]], edge[at[source[k]]] = target[k], k
            at[source[k]] += 1
            end[at[target[k]]], edge[at[target[k]]] = source[k], k
            at[target[k]] += 1
    # Each unit's neighbours in ascending order: units in turn tell their neighbours of themselves.
    ranked, at = empty_ints(len(end)), offset[:-1].copy()
    for u in range(count):
        for k in range(offset[u], offset[u + 1]):
            ranked[at[end[k]]] = u
            at[end[k]] += 1
    other = empty_ints(len(end))
    into, out = full_floats(len(end), -1.0), full_floats(len(end), -1.0)
    slot = full_ints(count, -1)
    total = 0
    for u in range(count):
        low, high = offset[u], offset[u + 1]
        first = total
        offset[u] = first
        for k in range(low, high):
            neighbour = ranked[k]
            if total == first or other[total - 1] != neighbour:
                other[total] = neighbour
                slot[neighbour] = total
                total += 1
        for k in range(low, high):
            flow = out if source[edge[k]] == u else into
            at_slot = slot[end[k]]
            flow[at_slot] = max(flow[at_slot], 0.0) + size[edge[k]]
    offset[count] = total
    return offset, other[:total].copy(), into[:total].copy(), out[:total].copy()


@kernel
def flows_of_ops(
    source: IntArray, target: IntArray, size: FloatArray, count: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """``flows_between`` where every op is a unit, by merging: a quarter of the time.

    Args:
        source: op that each edge comes from, ascending. [E]
        target: op that each edge goes to, a later one in some order of all. [E]
        size: bytes of each edge; no pair of ops has two. [E]
        count: the number of ops, n.
    """
    into_offset, come = grouped(target, count)
    total, offset = 2 * len(source), zero_ints(count + 1)
    other = empty_ints(total)
    into, out = full_floats(total, -1.0), full_floats(total, -1.0)
    at, k = 0, 0
    for op in range(count):
        j, end = into_offset[op], into_offset[op + 1]
        while j < end or (k < len(source) and source[k] == op):
            leaves = k < len(source) and source[k] == op
            if j == end or (leaves and target[k] < source[come[j]]):
                other[at], out[at] = target[k], size[k]
                k += 1
            else:
                other[at], into[at] = source[come[j]], size[come[j]]
                j += 1
            at += 1
        offset[op + 1] = at
    return offset, other, into, out
