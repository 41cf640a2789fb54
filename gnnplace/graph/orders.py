"""Traversal orders: functions from a graph to a permutation of its ops.

``traversal`` returns the order of a name. ``ORDERS`` is the table of names, with the source and the
direction of each: producers before consumers, consumers before producers, or neither. A user may
give a function of his own as ``module:function``. It has the arguments and the result of the
functions here; its result is checked, and ``direction`` reads off its direction. Orders without a
function are found by a policy while it walks, op by op.

All orders are deterministic (``random`` for a given seed). Ties go to the op that comes first in
the stable topological order; ``lexicographic``, ``alpha`` and ``breadth-first-sources`` compare
names instead. Complexity: O((n + edges) log n) or less.

Wang et al. (2022, arXiv 2201.09676) compare six orders: ``alpha``, ``topological``,
``reverse-topological``, ``depth-first-pre``, ``depth-first-post`` and ``breadth-first-sources``.
Deviation: their code uses networkx 2.4, whose topological order breaks ties in another way.

Ranks of ops are lengths of paths, from costs of ops and edges in seconds. The upward rank
(Topcuoglu et al., 2002, eq. 8) is the cost of the op plus the longest path after it, edges
included. The downward rank (eq. 10) is the longest path before the op. Complexity: O(n + edges).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import InputError
from gnnplace.graph.computation_graph import ComputationGraph
from gnnplace.imports import find_callable, said

Rank = Callable[[ComputationGraph, FloatArray, FloatArray], FloatArray]
Order = Callable[[ComputationGraph, FloatArray, FloatArray, int], IntArray]


def upward_rank(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray
) -> FloatArray:
    """Return the longest path from each op's start to the end, in seconds. [n]

    Args:
        graph: The graph of ops.
        cost: Seconds of each op. [n]
        edge_cost: Seconds of each of ``graph.edges``.
    """
    return cost + rank_after(graph, cost, edge_cost)


def rank_after(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray
) -> FloatArray:
    """Return the longest path from each op's finish to the end, in seconds. [n]

    It is the upward rank without the op's own cost. Arguments are those of ``upward_rank``.
    """
    from gnnplace.graph.kernels import longest_after

    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    return np.asarray(longest_after(*arrays, cost, edge_cost))


def downward_rank(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray
) -> FloatArray:
    """Return the longest path from the beginning to each op's start, in seconds. [n]

    Arguments are those of ``upward_rank``.
    """
    from gnnplace.graph.kernels import longest_before

    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    return np.asarray(longest_before(*arrays, cost, edge_cost))


def levels(graph: ComputationGraph) -> IntArray:
    """Count the edges on the longest path from a source to each op. [n]"""
    return _count_edges(downward_rank, graph)


def levels_from_sinks(graph: ComputationGraph) -> IntArray:
    """Count the edges on the longest path from each op to a sink. [n]"""
    return _count_edges(upward_rank, graph)


def _count_edges(rank: Rank, graph: ComputationGraph) -> IntArray:
    """Count the edges on the paths of a rank: only edges cost something, each 1. [n]"""
    ones = np.ones(len(graph.successor))
    return rank(graph, np.zeros(graph.num_ops), ones).astype(np.int32)


def topological(graph: ComputationGraph, *_: object) -> IntArray:
    """List producers first; among the ready ops the one with the smallest index is next. [n]"""
    return graph.topological_order


def reverse_topological(graph: ComputationGraph, *_: object) -> IntArray:
    """Reverse ``topological``. [n]"""
    return np.ascontiguousarray(graph.topological_order[::-1])


def breadth_first(graph: ComputationGraph, *_: object) -> IntArray:
    """List producers first; among the ready ops the one that became ready first is next. [n]"""
    from gnnplace.graph.kernels import first_ready_first

    return np.asarray(first_ready_first(graph.successor_offset, graph.successor))


def depth_first_pre(graph: ComputationGraph, *_: object) -> IntArray:
    """Search depth-first from each source in turn; list an op when it is first met. [n]"""
    return _search_depth_first(graph, np.arange(graph.num_ops)).pre_order


def depth_first_post(graph: ComputationGraph, *_: object) -> IntArray:
    """Search depth-first from each source in turn; list an op after all its successors. [n]"""
    return _search_depth_first(graph, np.arange(graph.num_ops)).post_order


def depth_first_rank(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray, *_: object
) -> IntArray:
    """List producers first, one branch after the other, the longest branch first. [n]

    It is the reverse of a depth-first post-order that takes the branch of least upward rank first.
    The listing of ops only matters for ties in upward rank.
    """
    rank = upward_rank(graph, cost, edge_cost)
    post_order = _search_depth_first(graph, rank).post_order
    return np.ascontiguousarray(post_order[::-1])


class DepthFirstOrders(NamedTuple):
    """The two orders of a depth-first search.

    Attributes:
        pre_order: The ops as they are first met. [n]
        post_order: The ops, each after all its successors. [n]
    """

    pre_order: IntArray
    post_order: IntArray


def _search_depth_first(graph: ComputationGraph, key: NDArray[Any]) -> DepthFirstOrders:
    """Search depth-first from every source and return the two orders.

    Sources, and the successors of an op, are taken in ascending order of ``key``. [n]
    """
    from gnnplace.graph.kernels import depth_first as depth_first_kernel

    predecessor = np.repeat(np.arange(graph.num_ops), np.diff(graph.successor_offset))
    by_key = np.lexsort((key[graph.successor], predecessor))
    listed_sources = np.flatnonzero(np.diff(graph.predecessor_offset) == 0)
    by_source_key = np.argsort(key[listed_sources], kind="stable")
    sources = listed_sources[by_source_key].astype(np.int32)
    pre_order, post_order = depth_first_kernel(
        graph.successor_offset, graph.successor[by_key], sources
    )
    return DepthFirstOrders(pre_order=pre_order, post_order=post_order)


def lexicographic(graph: ComputationGraph, *_: object) -> IntArray:
    """List producers first; among the ready ops the one with the first name is next. [n]"""
    return _list_ready(graph, alpha(graph))


def alpha(graph: ComputationGraph, *_: object) -> IntArray:
    """List all ops by name, regardless of edges; names compare as Python compares text. [n]"""
    return np.argsort(np.array(graph.names)).astype(np.int32)


def breadth_first_sources(graph: ComputationGraph, *_: object) -> IntArray:
    """Search breadth-first from each source in turn, sources by name; list an op when met. [n]

    An op may come before some of its producers. Successors come in the order of ``graph.edges``.
    """
    from gnnplace.graph.kernels import breadth_first as breadth_first_kernel

    by_name = alpha(graph)
    num_inputs = np.diff(graph.predecessor_offset)
    sources = by_name[num_inputs[by_name] == 0]
    return np.asarray(
        breadth_first_kernel(graph.successor_offset, graph.successor, sources),
        dtype=np.int32,
    )


def upward_rank_order(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray, *_: object
) -> IntArray:
    """List ops by falling upward rank. [n]"""
    rank = upward_rank(graph, cost, edge_cost)
    return np.lexsort((graph.position, -rank)).astype(np.int32)


def downward_rank_order(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray, *_: object
) -> IntArray:
    """List ops by rising downward rank (the earliest start), then by falling upward rank. [n]"""
    start = downward_rank(graph, cost, edge_cost)
    rank = upward_rank(graph, cost, edge_cost)
    return np.lexsort((graph.position, -rank, start)).astype(np.int32)


def reverse_upward_rank_order(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray, *_: object
) -> IntArray:
    """List ops by falling earliest finish: upward rank in the reversed graph. [n]"""
    finish = downward_rank(graph, cost, edge_cost) + cost
    return np.lexsort((-graph.position, -finish)).astype(np.int32)


def random_order(graph: ComputationGraph, seed: int) -> IntArray:
    """List producers first; among the ready ops the one with the least random number. [n]"""
    random_numbers = np.random.default_rng(seed).random(graph.num_ops)
    return _list_ready(graph, np.argsort(random_numbers))


def _list_ready(
    graph: ComputationGraph, preferred: NDArray[np.integer[Any]]
) -> IntArray:
    """List producers first; among the ready ops the one that is first in ``preferred``. [n]"""
    from gnnplace.graph.kernels import order_producers_first

    ops = preferred.astype(np.int32)
    return np.asarray(
        order_producers_first(graph.successor_offset, graph.successor, ops)
    )


class Direction(StrEnum):
    """The ends of tensors, producers or consumers, that an order lists first."""

    PRODUCERS = "producers first"
    CONSUMERS = "consumers first"
    NEITHER = "neither"


class OrderRow(NamedTuple):
    """A traversal order of the table ``ORDERS``.

    Attributes:
        source: Where the order comes from, or how it is defined.
        direction: Which ends of tensors it lists first.
        make: The function that returns the order of a graph; None if a policy finds the order
            while it walks.
        restriction: Which placers can use an order that no function makes, and why.
    """

    source: str
    direction: Direction
    make: Order | None = None
    restriction: str = ""


IN_TIME = "in-time"
EARLY = "earliest-start"
COORDINATE = "coordinate"
LEARNED = "learned-order"
_HEFT = "Topcuoglu et al. (2002)"
_WANG = "Wang et al. (2022)"
_PICKS_NEXT = (
    "only the placer learned can use it, which picks the next op as it places; gnn takes an order "
    "beforehand"
)
ORDERS: dict[str, OrderRow] = {
    "topological": OrderRow(
        source="the stable order",
        direction=Direction.PRODUCERS,
        make=topological,
    ),
    "reverse-topological": OrderRow(
        source="the stable order from its end",
        direction=Direction.CONSUMERS,
        make=reverse_topological,
    ),
    "breadth-first": OrderRow(
        source="Kahn (1962), with a queue",
        direction=Direction.PRODUCERS,
        make=breadth_first,
    ),
    "depth-first-pre": OrderRow(
        source="as a depth-first search first meets ops",
        direction=Direction.NEITHER,
        make=depth_first_pre,
    ),
    "depth-first-post": OrderRow(
        source="an op after all its successors",
        direction=Direction.CONSUMERS,
        make=depth_first_post,
    ),
    "lexicographic": OrderRow(
        source="of the ready ops the least name",
        direction=Direction.PRODUCERS,
        make=lexicographic,
    ),
    "alpha": OrderRow(
        source=f"{_WANG}: all names sorted",
        direction=Direction.NEITHER,
        make=alpha,
    ),
    "breadth-first-sources": OrderRow(
        source=f"{_WANG}: networkx's breadth-first search from each source",
        direction=Direction.NEITHER,
        make=breadth_first_sources,
    ),
    "upward-rank": OrderRow(
        source=f"{_HEFT}, eq. 8",
        direction=Direction.PRODUCERS,
        make=upward_rank_order,
    ),
    "downward-rank": OrderRow(
        source=f"{_HEFT}, eq. 10",
        direction=Direction.PRODUCERS,
        make=downward_rank_order,
    ),
    "depth-first-rank": OrderRow(
        source="branch after branch, the longest first",
        direction=Direction.PRODUCERS,
        make=depth_first_rank,
    ),
    "reverse-upward-rank": OrderRow(
        source="upward rank in the reversed graph",
        direction=Direction.CONSUMERS,
        make=reverse_upward_rank_order,
    ),
    "random": OrderRow(
        source="a seed",
        direction=Direction.PRODUCERS,
        make=lambda graph, cost, edge_cost, seed: random_order(graph, seed),
    ),
    IN_TIME: OrderRow(
        source="of the ready ops the one whose time is shortest",
        direction=Direction.PRODUCERS,
        restriction=_PICKS_NEXT,
    ),
    EARLY: OrderRow(
        source="of the ready ops the one that can start first",
        direction=Direction.PRODUCERS,
        restriction=_PICKS_NEXT,
    ),
    COORDINATE: OrderRow(
        source="by layer, a layer's ops of all phases together",
        direction=Direction.NEITHER,
        restriction="only placers that learned can use it, which know the phases and layers of ops",
    ),
    LEARNED: OrderRow(
        source="the network's own priorities",
        direction=Direction.PRODUCERS,
        restriction=(
            "only the placer gnn can use it, with a network that was trained so (--model.order)"
        ),
    ),
}
WALKED = (IN_TIME, EARLY, COORDINATE)
FIXED_ORDERS = tuple(name for name, row in ORDERS.items() if row.make is not None)


def check_order(name: str, *also: str) -> None:
    """Refuse an order that is not in ``FIXED_ORDERS``, not in ``also``, and no user's function.

    Raises:
        InputError: There is no such order, or ``module:function`` cannot be imported or called; the
            message says which.
    """
    if name in (*FIXED_ORDERS, *also):
        return
    if ":" not in name:
        if name in ORDERS:
            reason = ORDERS[name].restriction
        else:
            reason = "unknown"
        supported = ", ".join((*also, *FIXED_ORDERS))
        raise InputError(
            f"order {name!r}: {reason}; orders: {supported}, or module:function"
        )
    _find_function(name)


def get_base_order(name: str) -> str | None:
    """Return the order that a network learns from, or None if ``name`` is no learned order.

    An untrained ``learned-order`` is upward rank, and ``learned-order+BASE`` takes of the ready ops
    the one that BASE lists first. That is BASE itself if BASE lists producers first.
    """
    learned, plus, base = name.partition("+")
    if learned != LEARNED:
        return None
    if plus:
        return base
    return "upward-rank"


def check_network_order(name: str, *also: str) -> None:
    """Refuse an order that the graph network cannot walk in.

    It can walk in fixed orders, users' functions, ``coordinate``, learned orders and those of
    ``also``.

    Raises:
        InputError: The order is none of these; see ``check_order``.
    """
    base = get_base_order(name)
    if base is None:
        # No learned order: LEARNED is named only for the error message.
        check_order(name, *also, COORDINATE, LEARNED)
    elif base == "":
        check_order(base, *also, COORDINATE, LEARNED)
    else:
        check_order(base, *also, COORDINATE)


def _find_function(name: str) -> Order:
    """Import the user's function that ``module:function`` names."""
    module, _, function = name.rpartition(":")
    return find_callable(module, function, f"order {name!r}")


def direction(graph: ComputationGraph, order: IntArray) -> Direction:
    """Return which ends of tensors an order lists first. ``order``: all ops. [n]"""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    source, target, _ = graph.edges
    if (position[source] < position[target]).all():
        return Direction.PRODUCERS
    if (position[source] > position[target]).all():
        return Direction.CONSUMERS
    return Direction.NEITHER


def traversal(
    name: str,
    graph: ComputationGraph,
    cost: FloatArray,
    edge_cost: FloatArray,
    seed: int,
) -> IntArray:
    """Return the ops of ``graph`` in the traversal order ``name``. [n]

    Args:
        name: One of ``FIXED_ORDERS``, or ``module:function``.
        graph: The graph whose ops are ordered.
        cost: Seconds of each op. [n]
        edge_cost: Seconds of each of ``graph.edges``.
        seed: The seed of the ``random`` order.

    Raises:
        InputError: There is no such order; the message lists the names. Or the user's function
            failed, or did not return a permutation of the ops.
    """
    check_order(name)
    if name in ORDERS:
        make = ORDERS[name].make
    else:
        make = None
    if make is not None:
        return make(graph, cost, edge_cost, seed)

    # The user's function may do anything: report its errors, and check its result.
    try:
        order = np.asarray(_find_function(name)(graph, cost, edge_cost, seed))
    except Exception as error:
        raise InputError(f"order {name!r}: it failed: {said(error)}") from None
    ops = np.arange(graph.num_ops)
    is_integer = order.dtype.kind in "iu"
    if order.shape != ops.shape or not is_integer or (np.sort(order) != ops).any():
        raise InputError(
            f"order {name!r}: it gave no permutation of the graph's {graph.num_ops} ops; return "
            "each of their numbers once, as integers"
        )
    return order.astype(np.int32)
