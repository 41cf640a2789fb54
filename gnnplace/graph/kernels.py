"""Loops over the ops of a graph, in numba: traversals and longest paths. O((n + edges) log n).

A graph comes in as its CSR arrays: ``offset`` [n + 1] says where each op's successors start in
``successor``.
"""

from __future__ import annotations

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph.jit import inner, kernel
from gnnplace.graph.kernel_arrays import empty_ints, zero_flags, zero_floats, zero_ints


@inner()
def count_inputs(offset: IntArray, successor: IntArray) -> IntArray:
    """Number of predecessors of each op. [n]"""
    waiting = zero_ints(len(offset) - 1)
    for other in successor:
        waiting[other] += 1
    return waiting


@kernel
def grouped(key: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Where each key's entries start, and entries by key, in listing order within one. O(n + count)

    A stable sort by counting. ``key``: from 0 to ``count`` - 1, [n]. Returns [count + 1], [n].
    """
    offset = zero_ints(count + 1)
    for k in range(len(key)):
        offset[key[k] + 1] += 1
    for k in range(count):
        offset[k + 1] += offset[k]
    at, entry = offset[:-1].copy(), empty_ints(len(key))
    for k in range(len(key)):
        entry[at[key[k]]] = k
        at[key[k]] += 1
    return offset, entry


@inner(_nrt=False)
def add_to(heap: IntArray, count: int, item: int) -> None:
    """Adds an item to a binary heap of ``count`` items, the least first; ``heap`` has room."""
    at = count
    while at > 0 and heap[(at - 1) >> 1] > item:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = item


@inner(_nrt=False)
def take_least(heap: IntArray, count: int) -> int:
    """Takes the least item off a binary heap of ``count`` items, at least one."""
    least, item, at = heap[0], heap[count - 1], 0
    while 2 * at + 1 < count - 1:
        below = 2 * at + 1
        if below + 1 < count - 1 and heap[below + 1] < heap[below]:
            below += 1
        if item <= heap[below]:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = item
    return least


@kernel
def least_first(offset: IntArray, successor: IntArray, op_of: IntArray) -> IntArray:
    """Producers first, among the ready ops the one that comes first in ``op_of``. [<= n]

    Shorter than n where there is a cycle.

    Args:
        offset: where each op's successors start. [n + 1]
        successor: successors of all ops.
        op_of: all ops, the one to prefer first. [n]
    """
    n = len(op_of)
    key = empty_ints(n)
    for k in range(n):
        key[op_of[k]] = k
    waiting = count_inputs(offset, successor)
    ready, num_ready = empty_ints(n), 0
    for k in range(n):
        if waiting[op_of[k]] == 0:
            ready[num_ready] = k  # A list that ascends is a heap.
            num_ready += 1
    order = empty_ints(n)
    count = 0
    while num_ready > 0:
        op = op_of[take_least(ready, num_ready)]
        num_ready -= 1
        order[count] = op
        count += 1
        for k in range(offset[op], offset[op + 1]):
            other = successor[k]
            waiting[other] -= 1
            if waiting[other] == 0:
                add_to(ready, num_ready, key[other])
                num_ready += 1
    return order[:count]


@kernel
def first_ready_first(offset: IntArray, successor: IntArray) -> IntArray:
    """Producers first; ops become ready into a queue. [n]"""
    waiting = count_inputs(offset, successor)
    order = empty_ints(len(waiting))
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


@kernel
def depth_first(
    offset: IntArray, successor: IntArray, sources: IntArray
) -> tuple[IntArray, IntArray]:
    """Pre- and post-order of a depth-first search from ``sources`` in turn. [n], [n]"""
    n = len(offset) - 1
    following = offset[:-1].copy()
    met = zero_flags(n)
    pre, post, stack = empty_ints(n), empty_ints(n), empty_ints(n + 1)
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


@kernel
def longest_after(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    cost: FloatArray,
    edge_cost: FloatArray,
) -> FloatArray:
    """Longest path from each op's finish to the end; ``order`` is topological. [n]"""
    after = zero_floats(len(order))
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        for k in range(offset[op], offset[op + 1]):
            other = successor[k]
            after[op] = max(after[op], edge_cost[k] + (cost[other] + after[other]))
    return after


@kernel
def longest_before(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    cost: FloatArray,
    edge_cost: FloatArray,
) -> FloatArray:
    """Longest path from the beginning to each op's start; ``order`` is topological. [n]"""
    before = zero_floats(len(order))
    for op in order:
        done = before[op] + cost[op]
        for k in range(offset[op], offset[op + 1]):
            other = successor[k]
            before[other] = max(before[other], done + edge_cost[k])
    return before
