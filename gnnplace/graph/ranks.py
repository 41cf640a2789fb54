"""Ranks of ops by path lengths; op and edge costs come in as arrays, in seconds.

Upward rank (Topcuoglu et al., 2002, eq. 8): cost of the op plus the longest path after it, edges
counted. Downward rank (eq. 10): the longest path before the op. Both O(n + edges).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph.computation_graph import ComputationGraph
from gnnplace.graph.kernels import longest_after, longest_before

Rank = Callable[[ComputationGraph, FloatArray, FloatArray], FloatArray]


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
