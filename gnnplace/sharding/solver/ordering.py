"""Elimination orders: min-fill and min-weight, the smaller estimated work wins.

Min-fill (Kjaerulff, 1990) eliminates the node whose neighbours lack the fewest edges among each
other, ties by the product of the neighbours' numbers of configurations; min-weight takes the
smallest such product first. Estimated work of eliminating v: K_v times the product over its
neighbours. Complexity: O(N w^2 log N) for treewidth w, with a heap that is renewed lazily.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations

Adjacency = list[set[int]]
Score = Callable[[Adjacency, Sequence[int], int], tuple[float, float]]


def min_fill(adjacency: Adjacency, sizes: Sequence[int], node: int) -> tuple[float, float]:
    """Missing edges among the neighbours, then the product of their sizes."""
    around = adjacency[node]
    if len(around) <= 1:
        return 0.0, 1.0
    missing = sum(b not in adjacency[a] for a, b in combinations(around, 2))
    return float(missing), float(math.prod(sizes[other] for other in around))


def min_weight(adjacency: Adjacency, sizes: Sequence[int], node: int) -> tuple[float, float]:
    """The product of the neighbours' sizes, then the missing edges."""
    missing, weight = min_fill(adjacency, sizes, node)
    return weight, missing


def elimination_order(
    adjacency: Sequence[set[int]], sizes: Sequence[int]
) -> tuple[list[int], float]:
    """The better of the two orders, and its estimated work in table cells."""
    found = [_greedy(adjacency, sizes, score) for score in (min_fill, min_weight)]
    return min(found, key=lambda entry: entry[1])


def _greedy(
    adjacency: Sequence[set[int]], sizes: Sequence[int], score: Score
) -> tuple[list[int], float]:
    graph = [set(around) for around in adjacency]
    heap = [(*score(graph, sizes, node), node) for node in range(len(graph))]
    heapify(heap)
    order: list[int] = []
    done, work = [False] * len(graph), 0.0
    while heap:
        *priority, node = heappop(heap)
        if done[node] or tuple(priority) != score(graph, sizes, node):
            continue
        done[node] = True
        order.append(node)
        work += math.prod(sizes[other] for other in (node, *graph[node]))
        for other in _remove(graph, node):
            if not done[other]:
                heappush(heap, (*score(graph, sizes, other), other))
    return order, work


def _remove(graph: list[set[int]], node: int) -> set[int]:
    """Connects the node's neighbours and takes it out; the nodes whose scores may have changed."""
    around = graph[node]
    touched = set(around)
    for a in around:
        graph[a] |= around
        graph[a] -= {a, node}
        touched |= graph[a]
    graph[node] = set()
    return touched
