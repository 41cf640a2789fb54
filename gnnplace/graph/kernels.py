"""Loops over the ops of a graph, in numba: traversals and longest paths. O((n + edges) log n).

A graph comes in as its CSR arrays: ``offset`` [n + 1] says where each op's successors start in
``successor``.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float64]


@njit(cache=True, boundscheck=False)
def count_inputs(offset: IntArray, successor: IntArray) -> IntArray:
    """Number of predecessors of each op. [n]"""
    waiting = np.zeros(len(offset) - 1, np.int32)
    for other in successor:
        waiting[other] += 1
    return waiting


@njit(cache=True, boundscheck=False)
def least_first(offset: IntArray, successor: IntArray, op_of: IntArray) -> IntArray:
    """Producers first, among the ready ops the one that comes first in ``op_of``. [<= n]

    Shorter than n where there is a cycle.

    Args:
        offset: where each op's successors start. [n + 1]
        successor: successors of all ops.
        op_of: all ops, the one to prefer first. [n]
    """
    n = len(op_of)
    key = np.empty(n, np.int32)
    for k in range(n):
        key[op_of[k]] = k
    waiting = count_inputs(offset, successor)
    ready = [np.int32(0)]
    ready.pop()
    for k in range(n):
        if waiting[op_of[k]] == 0:
            ready.append(np.int32(k))
    order = np.empty(n, np.int32)
    count = 0
    while len(ready) > 0:
        op = op_of[heappop(ready)]
        order[count] = op
        count += 1
        for k in range(offset[op], offset[op + 1]):
            other = successor[k]
            waiting[other] -= 1
            if waiting[other] == 0:
                heappush(ready, key[other])
    return order[:count]


@njit(cache=True, boundscheck=False)
def first_ready_first(offset: IntArray, successor: IntArray) -> IntArray:
    """Producers first; ops become ready into a queue. [n]"""
    waiting = count_inputs(offset, successor)
    order = np.empty(len(waiting), np.int32)
    count = 0
    for op in range(len(waiting)):
        if waiting[op] == 0:
            order[count] = op
            count += 1
    done = 0
    while done < count:
        op = order[done]
        done += 1
        for k in range(offset[op], offset[op + 1]):
            other = successor[k]
            waiting[other] -= 1
            if waiting[other] == 0:
                order[count] = other
                count += 1
    return order[:count]


@njit(cache=True, boundscheck=False)
def depth_first(
    offset: IntArray, successor: IntArray, sources: IntArray
) -> tuple[IntArray, IntArray]:
    """Pre- and post-order of a depth-first search from ``sources`` in turn. [n], [n]"""
    n = len(offset) - 1
    following = offset[:-1].copy()
    met = np.zeros(n, np.bool_)
    pre, post, stack = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n + 1, np.int32)
    num_pre, num_post = 0, 0
    for source in sources:
        stack[0] = source
        depth = 1
        while depth > 0:
            op = stack[depth - 1]
            if not met[op]:
                met[op] = True
                pre[num_pre] = op
                num_pre += 1
            while following[op] < offset[op + 1] and met[successor[following[op]]]:
                following[op] += 1
            if following[op] < offset[op + 1]:
                stack[depth] = successor[following[op]]
                depth += 1
            else:
                depth -= 1
                post[num_post] = op
                num_post += 1
    return pre, post


@njit(cache=True, boundscheck=False)
def longest_after(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    cost: FloatArray,
    edge_cost: FloatArray,
) -> FloatArray:
    """Longest path from each op's finish to the end; ``order`` is topological. [n]"""
    after = np.zeros(len(order))
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        for k in range(offset[op], offset[op + 1]):
            other = successor[k]
            after[op] = max(after[op], edge_cost[k] + (cost[other] + after[other]))
    return after


@njit(cache=True, boundscheck=False)
def longest_before(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    cost: FloatArray,
    edge_cost: FloatArray,
) -> FloatArray:
    """Longest path from the beginning to each op's start; ``order`` is topological. [n]"""
    before = np.zeros(len(order))
    for op in order:
        done = before[op] + cost[op]
        for k in range(offset[op], offset[op + 1]):
            other = successor[k]
            before[other] = max(before[other], done + edge_cost[k])
    return before
