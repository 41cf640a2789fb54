"""The learned traversal order: of the ready ops, the walk takes the one of highest priority.

An op's priority is the output of a linear head on the encoder's state, plus ``SHARPNESS`` times the
share of ops that come after it in a base order (upward rank, unless another is named). The head
begins at zero, so that the order begins as the base order; if that does not list producers first,
as the nearest order that does. A draw takes each op by the softmax of the ready ops' priorities
(Plackett-Luce over ready ops):

    log p(order) = sum over steps of (priority(chosen) - log sum over ready ops of exp(priority))

whose gradient by an op's priority is the number of times that it was chosen (one) minus the sum of
its shares in the softmax while it was ready. ``order_gradient`` computes it exactly. ``race_ops``
draws by exponential waiting times from when an op gets ready, of rate exp(priority): they have no
memory, so that the first to end is such a choice at every step. (Gumbel noise that is drawn once an
op would favour ops that get ready late.)
Complexity: an order O((m + edges) log m), a gradient O(edges + m * most ready ops).
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import (
    ComputationGraph,
    heap_pop,
    heap_push,
    kernel,
    order_producers_first,
    zero_floats,
    zero_ints,
)

# Of the first order: a draw moves an op by about a thirtieth of all ops.
SHARPNESS = 32.0


def first_priority(order: IntArray) -> FloatArray:
    """Return the priorities that give ``order`` where it lists producers first. [m]"""
    priority = np.empty(len(order))
    position = np.arange(len(order)) / max(1, len(order))
    priority[order] = SHARPNESS * (1.0 - position)
    return priority


def priority_order(graph: ComputationGraph, priority: FloatArray) -> IntArray:
    """Return the ops, producers first, of the ready ones always that of highest priority. [m]"""
    preferred = np.argsort(-priority, kind="stable").astype(np.int32)
    return np.asarray(
        order_producers_first(graph.successor_offset, graph.successor, preferred)
    )


def draw_order(
    graph: ComputationGraph, priority: FloatArray, rng: np.random.Generator
) -> IntArray:
    """Draw an order: ops, producers first, each taken by the softmax over the ready ones. [m]"""
    wait = rng.exponential(size=len(priority)) * np.exp(
        priority.max(initial=0.0) - priority
    )
    return np.asarray(race_ops(graph.successor_offset, graph.successor, wait))


@kernel
def race_ops(offset: IntArray, successor: IntArray, wait: FloatArray) -> IntArray:
    """Return ops in the order in which they end, each so long after it is ready. [m]

    Args:
        offset: Index where each op's successors start. [m + 1]
        successor: successors of the ops, one op after the other. [edges]
        wait: how long each waits once it is ready. [m]
    """
    m = len(wait)
    low = np.int64(0)
    keys = zero_floats(m)
    items = zero_ints(m)
    order = zero_ints(m)
    missing = zero_ints(m)
    count = np.int64(0)
    for k in successor:
        missing[k] += 1
    for i in range(m):
        if missing[i] == 0:
            heap_push(keys, items, low, count, wait[i], i)
            count += 1
    for step in range(m):
        time = keys[0]
        op = heap_pop(keys, items, low, count)
        count -= 1
        order[step] = op
        for k in range(offset[op], offset[op + 1]):
            consumer = successor[k]
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heap_push(keys, items, low, count, time + wait[consumer], consumer)
                count += 1
    return order


@kernel
def order_gradient(
    offset: IntArray, successor: IntArray, order: IntArray, priority: FloatArray
) -> FloatArray:
    """Return the gradient of an order's log-probability by the priorities. [m]

    Args:
        offset: Index where each op's successors start. [m + 1]
        successor: successors of the ops, one op after the other. [edges]
        order: ops, producers first. [m]
        priority: Priority of each op. [m]
    """
    m = len(order)
    gradient = zero_floats(m)
    missing = zero_ints(m)
    ready = zero_ints(m)
    count = 0
    for k in successor:
        missing[k] += 1
    for i in range(m):
        if missing[i] == 0:
            ready[count] = i
            count += 1
    for op in order:
        highest = -np.inf
        total = 0.0
        for k in range(count):
            highest = max(highest, priority[ready[k]])
        for k in range(count):
            total += np.exp(priority[ready[k]] - highest)
        for k in range(count):
            candidate = ready[k]
            share = np.exp(priority[candidate] - highest) / total
            gradient[candidate] -= share
        gradient[op] += 1.0
        for k in range(count):
            if ready[k] == op:
                count -= 1
                ready[k] = ready[count]
                break
        for k in range(offset[op], offset[op + 1]):
            missing[successor[k]] -= 1
            if missing[successor[k]] == 0:
                ready[count] = successor[k]
                count += 1
    return gradient
