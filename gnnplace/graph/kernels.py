"""Loops over the ops of a graph, in numba: traversals and longest paths. O((n + edges) log n).

A graph comes in as its CSR arrays: ``offset`` [n + 1] says where each op's successors start in
``successor``.

Loops over ops and edges that ``SearchSpace`` needs, in numba. O(n D + edges log edges).
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph.jit import inner, kernel
from gnnplace.graph.kernel_arrays import (
    empty_ints,
    full_floats,
    full_ints,
    zero_flags,
    zero_floats,
    zero_ints,
)


@inner()
def count_inputs(offset: IntArray, successor: IntArray) -> IntArray:
    """Return the number of predecessors of each op. [n]"""
    waiting = zero_ints(len(offset) - 1)
    for consumer in successor:
        waiting[consumer] += 1
    return waiting


@kernel
def group_entries(key: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Return where each key's entries start, and the entries by key, in listing order within one.

    This is a stable sort by counting, in O(n + count).

    Args:
        key: Keys from 0 to ``count`` - 1. [n]
        count: The number of keys.

    Returns:
        Where each key's entries start [count + 1] and the entries [n].
    """
    offset = zero_ints(count + 1)
    for k in range(len(key)):
        offset[key[k] + 1] += 1
    for k in range(count):
        offset[k + 1] += offset[k]
    at = offset[:-1].copy()
    entry = empty_ints(len(key))
    for k in range(len(key)):
        entry[at[key[k]]] = k
        at[key[k]] += 1
    return offset, entry


@inner(_nrt=False)
def _root(parent: IntArray, node: int) -> int:
    """Return the root of a node's tree, and shorten the path to it."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@kernel
def components(source: IntArray, target: IntArray, count: int) -> IntArray:
    """Return the connected component of each node of an undirected graph. [count]

    Components are numbered from 0 by their smallest nodes. Disjoint sets with path halving: almost
    O(count + edges).

    Args:
        source: One end of each edge. [edges]
        target: The other end. [edges]
        count: Number of nodes.
    """
    parent = empty_ints(count)
    for node in range(count):
        parent[node] = node
    for k in range(len(source)):
        first = _root(parent, source[k])
        second = _root(parent, target[k])
        # The smaller node is the root, so that a component is met first at its root.
        if first < second:
            parent[second] = first
        else:
            parent[first] = second
    label = empty_ints(count)
    number = 0
    for node in range(count):
        root = _root(parent, node)
        if root == node:
            label[node] = number
            number += 1
        else:
            label[node] = label[root]
    return label


@inner(_nrt=False)
def add_to(heap: IntArray, count: int, item: int) -> None:
    """Add an item to a binary heap of ``count`` items, the least first; ``heap`` has room."""
    at = count
    while at > 0 and heap[(at - 1) >> 1] > item:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = item


@inner(_nrt=False)
def take_least(heap: IntArray, count: int) -> int:
    """Take the least item off a binary heap of ``count`` items, at least one."""
    smallest = heap[0]
    item = heap[count - 1]
    at = 0
    while 2 * at + 1 < count - 1:
        below = 2 * at + 1
        if below + 1 < count - 1 and heap[below + 1] < heap[below]:
            below += 1
        if item <= heap[below]:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = item
    return smallest


@kernel
def order_producers_first(
    offset: IntArray, successor: IntArray, op_of: IntArray
) -> IntArray:
    """Return ops with producers first, preferring ready ops that come first in ``op_of``. [<= n]

    Shorter than n where there is a cycle.

    Args:
        offset: Index where each op's successors start. [n + 1]
        successor: Successors of all ops.
        op_of: All ops, the one to prefer first. [n]
    """
    n = len(op_of)
    key = empty_ints(n)
    for k in range(n):
        key[op_of[k]] = k
    waiting = count_inputs(offset, successor)
    ready = empty_ints(n)
    num_ready = 0
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
            consumer = successor[k]
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                add_to(ready, num_ready, key[consumer])
                num_ready += 1
    return order[:count]


@kernel
def first_ready_first(offset: IntArray, successor: IntArray) -> IntArray:
    """List producers first; ops become ready into a queue. [n]"""
    waiting = count_inputs(offset, successor)
    order = empty_ints(len(waiting))
    count = 0
    for op in range(len(waiting)):
        if waiting[op] == 0:
            order[count] = op
            count += 1
    num_visited = 0
    while num_visited < count:
        op = order[num_visited]
        num_visited += 1
        for k in range(offset[op], offset[op + 1]):
            consumer = successor[k]
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                order[count] = consumer
                count += 1
    return order[:count]


@kernel
def breadth_first(offset: IntArray, successor: IntArray, sources: IntArray) -> IntArray:
    """Search breadth-first from ``sources`` in turn; list an op when it is first met. [n]

    A search passes by what an earlier one met: all that can be reached from there was met too.
    """
    n = len(offset) - 1
    met = zero_flags(n)
    order = empty_ints(n)
    visited = 0
    count = 0
    for source in sources:
        if met[source]:
            continue
        met[source] = True
        order[count] = source
        count += 1
        # ``order`` is the queue as well: its first ``visited`` ops have met their successors.
        while visited < count:
            op = order[visited]
            visited += 1
            for k in range(offset[op], offset[op + 1]):
                target = successor[k]
                if not met[target]:
                    met[target] = True
                    order[count] = target
                    count += 1
    return order[:count]


@kernel
def depth_first(
    offset: IntArray, successor: IntArray, sources: IntArray
) -> tuple[IntArray, IntArray]:
    """Search depth-first from ``sources`` in turn; return pre- and post-order. [n], [n]"""
    n = len(offset) - 1
    following = offset[:-1].copy()
    met = zero_flags(n)
    pre = empty_ints(n)
    post = empty_ints(n)
    stack = empty_ints(n + 1)
    num_pre = 0
    num_post = 0
    for source in sources:
        stack[0] = source
        depth = 1
        while depth > 0:
            op = stack[depth - 1]
            if not met[op]:
                met[op] = True
                pre[num_pre] = op
                num_pre += 1
            # Go down to the next successor that was not met, or back up if there is none.
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
    """Return the longest path from each op's finish to the end; ``order`` is topological. [n]"""
    path = zero_floats(len(order))
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        for k in range(offset[op], offset[op + 1]):
            consumer = successor[k]
            path[op] = max(path[op], edge_cost[k] + (cost[consumer] + path[consumer]))
    return path


@kernel
def longest_before(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    cost: FloatArray,
    edge_cost: FloatArray,
) -> FloatArray:
    """Return the longest path from the beginning to each op's start.

    ``order`` is topological. [n]
    """
    start = zero_floats(len(order))
    for op in order:
        finish = start[op] + cost[op]
        for k in range(offset[op], offset[op + 1]):
            consumer = successor[k]
            start[consumer] = max(start[consumer], finish + edge_cost[k])
    return start


@kernel
def average_finite(rows: FloatArray) -> FloatArray:
    """Return the mean of the finite entries of each row, 0 where there is none. [n, D] to [n]"""
    result = zero_floats(len(rows))
    for i in range(len(rows)):
        total = 0.0
        count = 0
        for value in rows[i]:
            if value < np.inf:
                total += value
                count += 1
        if count > 0:
            result[i] = total / count
    return result


@kernel
def sum_finite(rows: FloatArray) -> FloatArray:
    """Return the sum of the finite entries of each column. [n, D] to [D]"""
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
    """Return the coordinates of all ops, from those of forward ops in ``place``. [n]

    Another op takes the largest of its forward inputs', or the smallest of its other inputs', or
    keeps its own if it has no input. ``order`` is topological; inputs of ``op`` are
    ``predecessor[offset[op] : offset[op + 1]]``.
    """
    result = place.copy()
    for op in order:
        if forward[op] or offset[op] == offset[op + 1]:
            continue
        largest = -1.0
        smallest = np.inf
        for k in range(offset[op], offset[op + 1]):
            producer = predecessor[k]
            if forward[producer]:
                largest = max(largest, result[producer])
            smallest = min(smallest, result[producer])
        result[op] = largest if largest >= 0.0 else smallest
    return result


@kernel
def flows_between(
    source: IntArray, target: IntArray, size: FloatArray, count: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return the bytes between units in both directions, for each unit and its neighbours.

    Args:
        source: Unit that each edge comes from; edges within a unit are left out. [E]
        target: Unit that each edge goes to. [E]
        size: Bytes of each edge. [E]
        count: Number of units U.

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
    # The other end of each unit's edges, and the edge, in both directions.
    at = offset[:-1].copy()
    end = empty_ints(offset[-1])
    edge = empty_ints(offset[-1])
    for k in range(len(source)):
        if source[k] != target[k]:
            end[at[source[k]]] = target[k]
            edge[at[source[k]]] = k
            at[source[k]] += 1
            end[at[target[k]]] = source[k]
            edge[at[target[k]]] = k
            at[target[k]] += 1
    # Each unit's neighbours in ascending order: units in turn tell their neighbours of themselves.
    ranked = empty_ints(len(end))
    at = offset[:-1].copy()
    for u in range(count):
        for k in range(offset[u], offset[u + 1]):
            ranked[at[end[k]]] = u
            at[end[k]] += 1
    # Edges with one neighbour are summed: a neighbour gets the slot where it is met first.
    neighbours = empty_ints(len(end))
    into = full_floats(len(end), -1.0)
    out = full_floats(len(end), -1.0)
    slot = full_ints(count, -1)
    total = 0
    for u in range(count):
        low = offset[u]
        high = offset[u + 1]
        first = total
        offset[u] = first
        for k in range(low, high):
            neighbour = ranked[k]
            if total == first or neighbours[total - 1] != neighbour:
                neighbours[total] = neighbour
                slot[neighbour] = total
                total += 1
        for k in range(low, high):
            flow = out if source[edge[k]] == u else into
            at_slot = slot[end[k]]
            flow[at_slot] = max(flow[at_slot], 0.0) + size[edge[k]]
    offset[count] = total
    return offset, neighbours[:total].copy(), into[:total].copy(), out[:total].copy()


@kernel
def sum_op_flows(
    source: IntArray, target: IntArray, size: FloatArray, count: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return what ``flows_between`` does where every op is a unit, in a quarter of the time.

    Args:
        source: Op that each edge comes from, ascending. [E]
        target: Op that each edge goes to, a later one in some order of all. [E]
        size: Bytes of each edge; no pair of ops has two. [E]
        count: The number of ops, n.
    """
    # Both lists of an op are ascending: edges that leave it, by target, and edges that enter it.
    into_offset, come = group_entries(target, count)
    total = 2 * len(source)
    offset = zero_ints(count + 1)
    neighbours = empty_ints(total)
    into = full_floats(total, -1.0)
    out = full_floats(total, -1.0)
    at = 0
    k = 0
    for op in range(count):
        j = into_offset[op]
        end = into_offset[op + 1]
        while j < end or (k < len(source) and source[k] == op):
            leaves = k < len(source) and source[k] == op
            if j == end or (leaves and target[k] < source[come[j]]):
                neighbours[at], out[at] = target[k], size[k]
                k += 1
            else:
                neighbours[at], into[at] = source[come[j]], size[come[j]]
                j += 1
            at += 1
        offset[op + 1] = at
    return offset, neighbours, into, out
