"""Traversal orders: pure functions from a graph to a permutation of its ops.

All are deterministic (``random`` in its seed) and take O((n + edges) log n) or less. Ties go to the
op that comes first in the stable topological order, but for ``lexicographic``, which goes by name.

* ``topological``, ``breadth-first`` (Kahn, 1962, with a queue), ``lexicographic`` (of the ready ops
  the least name), ``upward-rank`` and ``downward-rank`` (Topcuoglu et al., 2002),
  ``depth-first-rank`` (branches one by one, the longest first) and ``random`` list producers
  before consumers.
* ``reverse-topological``, ``depth-first-post`` (an op after all its successors) and
  ``reverse-upward-rank`` (upward rank in the reversed graph) list consumers before producers.
* ``depth-first-pre`` lists an op when a depth-first search from the sources first meets it; it does
  neither.

Ranks of ops are lengths of paths; costs of ops and edges come in as arrays, in seconds. Upward rank
(Topcuoglu et al., 2002, eq. 8): cost of the op plus the longest path after it, edges counted.
Downward rank (eq. 10): the longest path before the op. Both O(n + edges).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import InputError
from gnnplace.graph import kernels
from gnnplace.graph.computation_graph import ComputationGraph
from gnnplace.graph.kernels import longest_after, longest_before

Rank = Callable[[ComputationGraph, FloatArray, FloatArray], FloatArray]
FORWARD_ORDERS = (
    "topological",
    "breadth-first",
    "lexicographic",
    "upward-rank",
    "downward-rank",
    "depth-first-rank",
    "random",
)
BACKWARD_ORDERS = ("reverse-topological", "depth-first-post", "reverse-upward-rank")
Order = Callable[[ComputationGraph, FloatArray, FloatArray, int], IntArray]


def upward_rank(graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray) -> FloatArray:
    """Longest path from each op's start to the end. ``edge_cost`` goes with ``graph.edges``. [n]"""
    return cost + rank_after(graph, cost, edge_cost)


def rank_after(graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray) -> FloatArray:
    """Upward rank without the op itself: longest path from each op's finish to the end. [n]"""
    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    return np.asarray(longest_after(*arrays, cost, edge_cost))


def downward_rank(graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray) -> FloatArray:
    """Longest path from the beginning to each op's start. [n]"""
    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    return np.asarray(longest_before(*arrays, cost, edge_cost))


def levels(graph: ComputationGraph) -> IntArray:
    """Number of edges on the longest path from a source to each op. [n]"""
    return _edges_on(downward_rank, graph)


def levels_from_sinks(graph: ComputationGraph) -> IntArray:
    """Number of edges on the longest path from each op to a sink. [n]"""
    return _edges_on(upward_rank, graph)


def _edges_on(rank: Rank, graph: ComputationGraph) -> IntArray:
    ones = np.ones(len(graph.successor))
    return rank(graph, np.zeros(graph.num_ops), ones).astype(np.int32)


def topological(graph: ComputationGraph) -> IntArray:
    """Producers first, among the ready ops the smallest index. [n]"""
    return graph.topological_order


def reverse_topological(graph: ComputationGraph) -> IntArray:
    """``topological`` from its end. [n]"""
    return np.ascontiguousarray(graph.topological_order[::-1])


def breadth_first(graph: ComputationGraph) -> IntArray:
    """Producers first; ops become ready into a queue. [n]"""
    return np.asarray(kernels.first_ready_first(graph.successor_offset, graph.successor))


def depth_first_pre(graph: ComputationGraph) -> IntArray:
    """Depth-first search from each source in turn, an op when it is first met. [n]"""
    return _depth_first(graph, np.arange(graph.num_ops))[0]


def depth_first_post(graph: ComputationGraph) -> IntArray:
    """Depth-first search from each source in turn, an op after all its successors. [n]"""
    return _depth_first(graph, np.arange(graph.num_ops))[1]


def depth_first_rank(graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray) -> IntArray:
    """Reverse of a depth-first post-order that leaves the longest branch to the last. [n]

    A producers-first order that goes down one branch before it starts the next, and that depends
    on the listing of ops for ties in upward rank alone.
    """
    key = upward_rank(graph, cost, edge_cost)
    return np.ascontiguousarray(_depth_first(graph, key)[1][::-1])


def _depth_first(graph: ComputationGraph, key: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Pre- and post-order; of sources and of an op's successors the least key first."""
    owner = np.repeat(np.arange(graph.num_ops), np.diff(graph.successor_offset))
    by_key = np.lexsort((key[graph.successor], owner))
    sources = np.flatnonzero(np.diff(graph.predecessor_offset) == 0)
    sources = sources[np.argsort(key[sources], kind="stable")].astype(np.int32)
    return kernels.depth_first(graph.successor_offset, graph.successor[by_key], sources)


def lexicographic(graph: ComputationGraph) -> IntArray:
    """Producers first, among the ready ops the least name. [n]"""
    return _least_first(graph, np.argsort(np.array(graph.names)))


def upward_rank_order(graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray) -> IntArray:
    """Ops by falling upward rank; costs in seconds. [n]"""
    rank = upward_rank(graph, cost, edge_cost)
    return np.lexsort((graph.position, -rank)).astype(np.int32)


def downward_rank_order(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray
) -> IntArray:
    """Ops by rising downward rank, their earliest start, then by falling upward rank. [n]

    Costs in seconds.
    """
    start = downward_rank(graph, cost, edge_cost)
    rank = upward_rank(graph, cost, edge_cost)
    return np.lexsort((graph.position, -rank, start)).astype(np.int32)


def reverse_upward_rank_order(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray
) -> IntArray:
    """Ops by falling earliest finish: upward rank in the reversed graph. [n]"""
    finish = downward_rank(graph, cost, edge_cost) + cost
    return np.lexsort((-graph.position, -finish)).astype(np.int32)


def random_order(graph: ComputationGraph, seed: int) -> IntArray:
    """Producers first, among the ready ops the one with the least random number. [n]"""
    return _least_first(graph, np.argsort(np.random.default_rng(seed).random(graph.num_ops)))


def _least_first(graph: ComputationGraph, preferred: NDArray[np.intp]) -> IntArray:
    op_of = preferred.astype(np.int32)
    return np.asarray(kernels.least_first(graph.successor_offset, graph.successor, op_of))


ORDERS: dict[str, Order] = {
    "topological": lambda graph, cost, edge_cost, seed: topological(graph),
    "reverse-topological": lambda graph, cost, edge_cost, seed: reverse_topological(graph),
    "breadth-first": lambda graph, cost, edge_cost, seed: breadth_first(graph),
    "depth-first-pre": lambda graph, cost, edge_cost, seed: depth_first_pre(graph),
    "depth-first-post": lambda graph, cost, edge_cost, seed: depth_first_post(graph),
    "lexicographic": lambda graph, cost, edge_cost, seed: lexicographic(graph),
    "upward-rank": lambda graph, cost, edge_cost, seed: upward_rank_order(graph, cost, edge_cost),
    "downward-rank": lambda graph, cost, edge_cost, seed: downward_rank_order(
        graph, cost, edge_cost
    ),
    "depth-first-rank": lambda graph, cost, edge_cost, seed: depth_first_rank(
        graph, cost, edge_cost
    ),
    "reverse-upward-rank": lambda graph, cost, edge_cost, seed: reverse_upward_rank_order(
        graph, cost, edge_cost
    ),
    "random": lambda graph, cost, edge_cost, seed: random_order(graph, seed),
}


def traversal(
    name: str, graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray, seed: int
) -> IntArray:
    """Ops of ``graph`` in the traversal order ``name``. [n]

    Args:
        name: a key of ``ORDERS``.
        graph: the graph whose ops are ordered.
        cost: seconds of each op. [n]
        edge_cost: seconds of each of ``graph.edges``.
        seed: the seed of the ``random`` order.

    Raises:
        InputError: there is no such order; the names are listed.
    """
    if name not in ORDERS:
        raise InputError(f"order {name!r}: unknown; orders: {', '.join(ORDERS)}")
    return ORDERS[name](graph, cost, edge_cost, seed)
