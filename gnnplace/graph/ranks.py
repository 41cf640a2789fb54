"""Ranks of ops by path lengths; op and edge costs come in as arrays, in seconds.

Upward rank (Topcuoglu et al., 2002, eq. 8): cost of the op plus the longest path after it, edges
counted. Downward rank (eq. 10): the longest path before the op. Both O(n + edges).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.computation_graph import ComputationGraph

FloatArray = NDArray[np.float64]


def upward_rank(graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray) -> FloatArray:
    """Longest path from each op's start to the end. ``edge_cost`` goes with ``graph.edges``. [n]"""
    offset, successor = graph.successor_offset.tolist(), graph.successor.tolist()
    seconds, between = cost.tolist(), edge_cost.tolist()
    rank = [0.0] * graph.num_ops
    for op in reversed(graph.topological_order.tolist()):
        longest = 0.0
        for k in range(offset[op], offset[op + 1]):
            path = between[k] + rank[successor[k]]
            if path > longest:
                longest = path
        rank[op] = seconds[op] + longest
    return np.array(rank)


def downward_rank(graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray) -> FloatArray:
    """Longest path from the beginning to each op's start. [n]"""
    offset, successor = graph.successor_offset.tolist(), graph.successor.tolist()
    seconds, between = cost.tolist(), edge_cost.tolist()
    rank = [0.0] * graph.num_ops
    for op in graph.topological_order.tolist():
        done = rank[op] + seconds[op]
        for k in range(offset[op], offset[op + 1]):
            if done + between[k] > rank[successor[k]]:
                rank[successor[k]] = done + between[k]
    return np.array(rank)


def levels(graph: ComputationGraph) -> NDArray[np.int32]:
    """Number of edges on the longest path from a source to each op. [n]"""
    ones = np.ones(len(graph.edges[0]))
    return downward_rank(graph, np.zeros(graph.num_ops), ones).astype(np.int32)
