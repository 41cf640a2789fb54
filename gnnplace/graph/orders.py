"""Traversal orders: pure functions from a graph to a permutation of its ops.

All are deterministic (``random`` in its seed) and take O((n + edges) log n) or less. Ties go to the
op that comes first in the stable topological order, but for ``lexicographic``, ``alpha`` and
``breadth-first-sources``, which go by name.

Wang et al. (2022, arXiv 2201.09676) compare six orders, in the code that they publish: ``alpha``,
``topological``, ``reverse-topological``, ``depth-first-pre``, ``depth-first-post`` and
``breadth-first-sources``. Theirs come from networkx 2.4, whose topological order differs in ties.

``ORDERS`` is the one table of names, with sources and directions: producers before consumers,
consumers before producers, or neither. Some orders are found while a policy walks, op by op. An
order of one's own is ``module:function``, of the arguments and the result that these functions
have; what it gives is checked, and its direction is read off.

Ranks of ops are lengths of paths; costs of ops and edges come in as arrays, in seconds. Upward rank
(Topcuoglu et al., 2002, eq. 8): cost of the op plus the longest path after it, edges counted.
Downward rank (eq. 10): the longest path before the op. Both O(n + edges).
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

    ``edge_cost`` goes with ``graph.edges``.
    """
    return cost + rank_after(graph, cost, edge_cost)


def rank_after(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray
) -> FloatArray:
    """Return the longest path from each op's finish to the end: upward rank without the op. [n]"""
    from gnnplace.graph.kernels import longest_after

    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    return np.asarray(longest_after(*arrays, cost, edge_cost))


def downward_rank(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray
) -> FloatArray:
    """Return the longest path from the beginning to each op's start. [n]"""
    from gnnplace.graph.kernels import longest_before

    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    return np.asarray(longest_before(*arrays, cost, edge_cost))


def levels(graph: ComputationGraph) -> IntArray:
    """Count the edges on the longest path from a source to each op. [n]"""
    return _edges_on(downward_rank, graph)


def levels_from_sinks(graph: ComputationGraph) -> IntArray:
    """Count the edges on the longest path from each op to a sink. [n]"""
    return _edges_on(upward_rank, graph)


def _edges_on(rank: Rank, graph: ComputationGraph) -> IntArray:
    ones = np.ones(len(graph.successor))
    return rank(graph, np.zeros(graph.num_ops), ones).astype(np.int32)


def topological(graph: ComputationGraph, *_: object) -> IntArray:
    """List producers first, among the ready ops the smallest index. [n]"""
    return graph.topological_order


def reverse_topological(graph: ComputationGraph, *_: object) -> IntArray:
    """Reverse ``topological``. [n]"""
    return np.ascontiguousarray(graph.topological_order[::-1])


def breadth_first(graph: ComputationGraph, *_: object) -> IntArray:
    """List producers first; ops become ready into a queue. [n]"""
    from gnnplace.graph.kernels import first_ready_first

    return np.asarray(first_ready_first(graph.successor_offset, graph.successor))


def depth_first_pre(graph: ComputationGraph, *_: object) -> IntArray:
    """Search depth-first from each source in turn; list an op when it is first met. [n]"""
    return _depth_first(graph, np.arange(graph.num_ops))[0]


def depth_first_post(graph: ComputationGraph, *_: object) -> IntArray:
    """Search depth-first from each source in turn; list an op after all its successors. [n]"""
    return _depth_first(graph, np.arange(graph.num_ops))[1]


def depth_first_rank(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray, *_: object
) -> IntArray:
    """Reverse a depth-first post-order that leaves the longest branch to the last. [n]

    A producers-first order that goes down one branch before it starts the next, and that depends
    on the listing of ops for ties in upward rank alone.
    """
    key = upward_rank(graph, cost, edge_cost)
    return np.ascontiguousarray(_depth_first(graph, key)[1][::-1])


def _depth_first(
    graph: ComputationGraph, key: NDArray[Any]
) -> tuple[IntArray, IntArray]:
    """Return pre- and post-order; of sources and of an op's successors the least key first."""
    from gnnplace.graph.kernels import depth_first as depth_first_kernel

    owner = np.repeat(np.arange(graph.num_ops), np.diff(graph.successor_offset))
    by_key = np.lexsort((key[graph.successor], owner))
    unordered = np.flatnonzero(np.diff(graph.predecessor_offset) == 0)
    by_source_key = np.argsort(key[unordered], kind="stable")
    sources = unordered[by_source_key].astype(np.int32)
    return depth_first_kernel(graph.successor_offset, graph.successor[by_key], sources)


def lexicographic(graph: ComputationGraph, *_: object) -> IntArray:
    """List producers first, among the ready ops the least name. [n]"""
    return _least_first(graph, alpha(graph))


def alpha(graph: ComputationGraph, *_: object) -> IntArray:
    """List all ops by name, whatever their edges; names compare as text does in Python. [n]"""
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
    """List ops by falling upward rank; costs in seconds. [n]"""
    rank = upward_rank(graph, cost, edge_cost)
    return np.lexsort((graph.position, -rank)).astype(np.int32)


def downward_rank_order(
    graph: ComputationGraph, cost: FloatArray, edge_cost: FloatArray, *_: object
) -> IntArray:
    """List ops by rising downward rank, their earliest start, then by falling upward rank. [n]

    Costs in seconds.
    """
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
    """List producers first, among the ready ops the one with the least random number. [n]"""
    return _least_first(
        graph, np.argsort(np.random.default_rng(seed).random(graph.num_ops))
    )


def _least_first(
    graph: ComputationGraph, preferred: NDArray[np.integer[Any]]
) -> IntArray:
    from gnnplace.graph.kernels import least_first

    op_of = preferred.astype(np.int32)
    return np.asarray(least_first(graph.successor_offset, graph.successor, op_of))


class Direction(StrEnum):
    """The ends of tensors that an order lists first."""

    PRODUCERS = "producers first"
    CONSUMERS = "consumers first"
    NEITHER = "neither"


class OrderRow(NamedTuple):
    """A traversal order.

    Attributes:
        source: Where it comes from.
        direction: Which ends of tensors it lists first.
        make: Gives the order of a graph; None where a policy finds it while it walks.
        alone: Which decoders alone can walk in it, and why.
    """

    source: str
    direction: Direction
    make: Order | None = None
    alone: str = ""


IN_TIME = "in-time"
EARLY = "earliest-start"
COORDINATE = "coordinate"
LEARNED = "learned-order"
_FORTH = Direction.PRODUCERS
_BACK = Direction.CONSUMERS
_NEITHER = Direction.NEITHER
_HEFT = "Topcuoglu et al. (2002)"
_WANG = "Wang et al. (2022)"
_QUEUE = "the placer learned alone, which finds it as it places; gnn takes an order beforehand"
ORDERS: dict[str, OrderRow] = {
    "topological": OrderRow("the stable order", _FORTH, topological),
    "reverse-topological": OrderRow(
        "the stable order from its end", _BACK, reverse_topological
    ),
    "breadth-first": OrderRow("Kahn (1962), with a queue", _FORTH, breadth_first),
    "depth-first-pre": OrderRow(
        "as a depth-first search first meets ops", _NEITHER, depth_first_pre
    ),
    "depth-first-post": OrderRow(
        "an op after all its successors", _BACK, depth_first_post
    ),
    "lexicographic": OrderRow("of the ready ops the least name", _FORTH, lexicographic),
    "alpha": OrderRow(f"{_WANG}: all names sorted", _NEITHER, alpha),
    "breadth-first-sources": OrderRow(
        f"{_WANG}: networkx's breadth-first search from each source",
        _NEITHER,
        breadth_first_sources,
    ),
    "upward-rank": OrderRow(f"{_HEFT}, eq. 8", _FORTH, upward_rank_order),
    "downward-rank": OrderRow(f"{_HEFT}, eq. 10", _FORTH, downward_rank_order),
    "depth-first-rank": OrderRow(
        "branch after branch, the longest first", _FORTH, depth_first_rank
    ),
    "reverse-upward-rank": OrderRow(
        "upward rank in the reversed graph", _BACK, reverse_upward_rank_order
    ),
    "random": OrderRow(
        "a seed", _FORTH, lambda g, cost, edge, seed: random_order(g, seed)
    ),
    IN_TIME: OrderRow(
        "of the ready ops the one whose time is shortest", _FORTH, alone=_QUEUE
    ),
    EARLY: OrderRow(
        "of the ready ops the one that can start first", _FORTH, alone=_QUEUE
    ),
    COORDINATE: OrderRow(
        "by layer, a layer's ops of all phases together",
        _NEITHER,
        alone="placers that learned alone, which know the phases of ops and their layers",
    ),
    LEARNED: OrderRow(
        "the network's own priorities",
        _FORTH,
        alone="the placer gnn alone, with a network that was trained so (--model.order)",
    ),
}
WALKED = (IN_TIME, EARLY, COORDINATE)
FIXED_ORDERS = tuple(name for name, row in ORDERS.items() if row.make is not None)


def check_order(name: str, *also: str) -> None:
    """Refuse what is no fixed order, no function ``module:function``, and not of ``also``.

    Raises:
        InputError: There is no such order, or the function is wrong; the message says which.
    """
    if name in (*FIXED_ORDERS, *also):
        return
    if ":" not in name:
        if name in ORDERS:
            why = f"it is of {ORDERS[name].alone}"
        else:
            why = "unknown"
        known_orders = ", ".join((*also, *FIXED_ORDERS))
        raise InputError(
            f"order {name!r}: {why}; orders: {known_orders}, or module:function"
        )
    _own(name)


def base_of(name: str) -> str | None:
    """Return the order that a learned one begins as, or None for one that is not learned.

    ``learned-order`` begins as upward rank, ``learned-order+BASE`` as BASE: of the ready ops the
    one that BASE lists first, which is BASE itself where it lists producers first.
    """
    learned, plus, base = name.partition("+")
    if learned != LEARNED:
        return None
    if plus:
        return base
    return "upward-rank"


def check_network_order(name: str, *also: str) -> None:
    """Refuse what a network cannot walk in: all but fixed, own, ``coordinate`` and learned ones.

    Raises:
        InputError: The order is none, as ``check_order`` finds.
    """
    base = base_of(name)
    check_order(
        name if base is None else base, *also, COORDINATE, *(() if base else (LEARNED,))
    )


def _own(name: str) -> Order:
    module, _, function = name.rpartition(":")
    return find_callable(module, function, f"order {name!r}")


def direction(graph: ComputationGraph, order: IntArray) -> Direction:
    """Read off which ends of tensors an order lists first. ``order``: [n]"""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    source, target, _ = graph.edges
    if (position[source] < position[target]).all():
        return Direction.PRODUCERS
    consumers_first = (position[source] > position[target]).all()
    if consumers_first:
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
        InputError: There is no such order; the names are listed. A function failed, or gave no
            permutation of the ops.
    """
    check_order(name)
    if name in ORDERS:
        make = ORDERS[name].make
    else:
        make = None
    if make is not None:
        return make(graph, cost, edge_cost, seed)
    try:
        order = np.asarray(_own(name)(graph, cost, edge_cost, seed))
    except Exception as error:
        raise InputError(f"order {name!r}: it failed: {said(error)}") from None
    ops = np.arange(graph.num_ops)
    if (
        order.shape != ops.shape
        or order.dtype.kind not in "iu"
        or (np.sort(order) != ops).any()
    ):
        raise InputError(
            f"order {name!r}: it gave no permutation of the graph's {graph.num_ops} ops; return "
            "each of their numbers once, as integers"
        )
    return order.astype(np.int32)
