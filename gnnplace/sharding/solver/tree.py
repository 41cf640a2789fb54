"""The elimination as a tree of steps, and the order that it goes in.

Each step takes the tables that its node is in (factors of the problem and tables of earlier steps),
adds them up and takes the node out; its own table goes to exactly one later step, so the steps form
a tree with one root. A step has at most two children: further ones are first joined by steps
without a node.

Of the orders min-fill and min-weight the one with the smaller estimated work wins. Min-fill
(Kjaerulff, 1990) eliminates the node whose neighbours lack the fewest edges among each other, ties
by the product of the neighbours' numbers of configurations; min-weight takes the smallest such
product first. Estimated work of eliminating v: K_v times the product over its neighbours.
Complexity: O(N w^2 log N) for treewidth w, with a heap that is renewed lazily.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import combinations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, LongArray
from gnnplace.errors import UnsupportedError
from gnnplace.sharding.problem import Edge, ShardingProblem

Scope = tuple[int, ...]
CELL_LIMIT = 60_000_000  # Cells of one sum; some arrays of this size are there at once.
Adjacency = list[set[int]]
Score = Callable[[Adjacency, Sequence[int], int], tuple[float, float]]


class TableTooLargeError(UnsupportedError):
    """A sum that has more cells than ``CELL_LIMIT``."""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        node: The node that is eliminated. None: two tables are only added.
        scope: nodes of the step's table.
        factors: indices of the problem's tables that come in here.
        children: indices of the steps whose tables come in here; at most two.
    """

    node: int | None
    scope: Scope
    factors: tuple[int, ...]
    children: tuple[int, ...]

    @property
    def axes(self) -> Scope:
        """Return the nodes of the sum's axes: the scope, then the eliminated node."""
        if self.node is None:
            return self.scope
        return (*self.scope, self.node)


@dataclass(frozen=True, eq=False)
class Factors:
    """Tables of time and memory: one a node, then one a pair of nodes with an edge.

    Attributes:
        scopes: the nodes of each, ascending.
        configurations: configurations of each node that are still in the tables.
    """

    scopes: tuple[Scope, ...]
    time: tuple[FloatArray, ...]
    memory: tuple[FloatArray, ...]
    configurations: tuple[LongArray, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of remaining configurations of each node."""
        return tuple(map(len, self.configurations))

    def weighted(self, weights: Sequence[tuple[float, float]]) -> list[FloatArray]:
        """Return ``weight[0] * time + weight[1] * memory`` of every table; equal ones are one
        array. [W, K of scope]
        """
        time_weights, memory_weights = (
            np.array(weights, dtype=np.float64).reshape(-1, 2).T
        )
        tables: dict[tuple[int, int], FloatArray] = {}
        for time, memory in zip(self.time, self.memory, strict=True):
            key = (id(time), id(memory))
            if key not in tables:
                parts = (
                    np.multiply.outer(time_weights, time),
                    np.multiply.outer(memory_weights, memory),
                )
                tables[key] = parts[0] + parts[1]
        pairs = zip(self.time, self.memory, strict=True)
        return [tables[id(time), id(memory)] for time, memory in pairs]

    def restrict(self, masks: Sequence[BoolArray]) -> Factors:
        """Return the factors without the configurations whose mask is false."""

        def cut(table: FloatArray, scope: Scope) -> FloatArray:
            return np.ascontiguousarray(table[np.ix_(*(masks[node] for node in scope))])

        return Factors(
            scopes=self.scopes,
            time=tuple(cut(t, s) for t, s in zip(self.time, self.scopes, strict=True)),
            memory=tuple(
                cut(m, s) for m, s in zip(self.memory, self.scopes, strict=True)
            ),
            configurations=tuple(
                rows[mask]
                for rows, mask in zip(self.configurations, masks, strict=True)
            ),
        )


def make_factors(problem: ShardingProblem) -> Factors:
    """Return the tables of a problem; parallel edges added up, missing memory zero."""
    memories = problem.memory or (None,) * len(problem.names)
    pairs = combine_edges(problem)
    byte_edges = [
        Edge(e.u, e.v, np.zeros_like(e.cost) if e.memory is None else e.memory)
        for e in problem.edges
    ]
    byte_problem = ShardingProblem(
        name="",
        devices=1,
        names=problem.names,
        cost=problem.cost,
        edges=tuple(byte_edges),
    )
    pair_bytes = combine_edges(byte_problem)
    nodes = zip(problem.cost, memories, strict=True)
    node_bytes = [
        np.zeros_like(cost) if memory is None else memory for cost, memory in nodes
    ]
    return Factors(
        scopes=(*((i,) for i in range(len(node_bytes))), *pairs),
        time=(*problem.cost, *pairs.values()),
        memory=(*node_bytes, *(pair_bytes[key] for key in pairs)),
        configurations=tuple(np.arange(len(cost)) for cost in problem.cost),
    )


def combine_edges(problem: ShardingProblem) -> dict[tuple[int, int], FloatArray]:
    """Return edge tables with parallel edges added up; the smaller node is the first axis."""
    pairs: dict[tuple[int, int], FloatArray] = {}
    for edge in problem.edges:
        key = (min(edge.u, edge.v), max(edge.u, edge.v))
        if edge.u < edge.v:
            cost = edge.cost
        else:
            cost = edge.cost.T
        pairs[key] = pairs[key] + cost if key in pairs else cost
    return pairs


def elimination_tree(factors: Factors) -> tuple[Step, ...]:
    """Return the steps, children first; the last is the root and has an empty scope."""
    sizes = factors.sizes
    adjacency: list[set[int]] = [set() for _ in sizes]
    for scope in factors.scopes[len(sizes) :]:
        adjacency[scope[0]].add(scope[1])
        adjacency[scope[1]].add(scope[0])
    steps: list[Step] = []
    waiting = set(range(len(factors.scopes)))  # Tables not taken yet: factors here,
    open_steps: list[int] = []  # and steps here.
    for node in elimination_order(adjacency, sizes)[0]:
        step_factors = tuple(k for k in sorted(waiting) if node in factors.scopes[k])
        waiting -= set(step_factors)
        children = [k for k in open_steps if node in steps[k].scope]
        open_steps = [k for k in open_steps if k not in children]
        children = _join(steps, children)
        neighbours = {n for k in step_factors for n in factors.scopes[k]}
        neighbours |= {n for k in children for n in steps[k].scope}
        steps.append(
            Step(
                node=node,
                scope=tuple(sorted(neighbours - {node})),
                factors=step_factors,
                children=tuple(children),
            )
        )
        open_steps.append(len(steps) - 1)
    roots = _join(steps, open_steps)
    if len(roots) > 1:
        steps.append(
            Step(
                node=None,
                scope=(),
                factors=(),
                children=tuple(roots),
            )
        )
    return tuple(steps)


def _join(steps: list[Step], tables: list[int]) -> list[int]:
    """Add steps that add up tables until two are left, small ones first; return those two."""
    remaining = sorted(tables, key=lambda k: len(steps[k].scope))
    while len(remaining) > 2:
        first, second = (steps[k].scope for k in remaining[:2])
        scope = tuple(sorted({*first, *second}))
        steps.append(
            Step(
                node=None,
                scope=scope,
                factors=(),
                children=(remaining[0], remaining[1]),
            )
        )
        remaining = sorted(
            [*remaining[2:], len(steps) - 1], key=lambda k: len(steps[k].scope)
        )
    return remaining


def spread(table: FloatArray, scope: Scope, axes: Scope) -> FloatArray:
    """Return ``table`` over ``scope`` as an array that broadcasts over ``axes``."""
    present = [node for node in axes if node in scope]
    turned = table.transpose([scope.index(node) for node in present])
    sizes = dict(zip(present, turned.shape, strict=True))
    return turned.reshape([sizes.get(node, 1) for node in axes])


def check_cells(shape: Sequence[int]) -> None:
    """Raise TableTooLargeError if an array would have more cells than ``CELL_LIMIT``."""
    if math.prod(shape) > CELL_LIMIT:
        raise TableTooLargeError(
            f"frontier: a table of {math.prod(shape):.3g} cells is more than the limit of "
            f"{CELL_LIMIT:.3g}; use fewer configurations, or ask for the best strategy alone"
        )


def step_sum(
    step: Step,
    tables: Sequence[FloatArray],
    scopes: Sequence[Scope],
    sizes: Sequence[int],
) -> FloatArray:
    """Return the sum of ``tables`` over the step's axes.

    Raises:
        TableTooLargeError: it would have more cells than ``CELL_LIMIT``.
    """
    return add_up(step.axes, tables, scopes, [sizes[node] for node in step.axes])


def add_up(
    axes: Scope,
    tables: Sequence[FloatArray],
    scopes: Sequence[Scope],
    shape: Sequence[int],
) -> FloatArray:
    """Return the sum of ``tables`` over ``axes``, which contain all of ``scopes``.

    Raises:
        TableTooLargeError: it would have more cells than ``CELL_LIMIT``.
    """
    check_cells(shape)
    total = np.zeros(shape)
    for table, scope in zip(tables, scopes, strict=True):
        total += spread(table, scope, axes)
    return total


def min_fill(
    adjacency: Adjacency, sizes: Sequence[int], node: int
) -> tuple[float, float]:
    """Return the missing edges among the neighbours, then the product of their sizes."""
    around = adjacency[node]
    if len(around) <= 1:
        return 0.0, 1.0
    missing = sum(b not in adjacency[a] for a, b in combinations(around, 2))
    return float(missing), float(math.prod(sizes[neighbour] for neighbour in around))


def min_weight(
    adjacency: Adjacency, sizes: Sequence[int], node: int
) -> tuple[float, float]:
    """Return the product of the neighbours' sizes, then the missing edges."""
    missing, weight = min_fill(adjacency, sizes, node)
    return weight, missing


def elimination_order(
    adjacency: Sequence[set[int]], sizes: Sequence[int]
) -> tuple[list[int], float]:
    """Return the better of the two orders, and its estimated work in table cells."""
    order, work = _better_order(tuple(map(frozenset, adjacency)), tuple(sizes))
    return list(order), work


@lru_cache(maxsize=256)  # one graph is solved with many tables
def _better_order(
    adjacency: tuple[frozenset[int], ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], float]:
    orders = [_greedy(adjacency, sizes, score) for score in (min_fill, min_weight)]
    order, work = min(orders, key=lambda entry: entry[1])
    return tuple(order), work


def _greedy(
    adjacency: Sequence[frozenset[int]], sizes: Sequence[int], score: Score
) -> tuple[list[int], float]:
    """Return the order that eliminates the node of least score each time, and its estimated work.

    The heap has outdated scores; an entry whose score has changed is dropped when it comes up.
    """
    graph = [set(around) for around in adjacency]
    heap = [(*score(graph, sizes, node), node) for node in range(len(graph))]
    heapify(heap)
    order: list[int] = []
    eliminated = [False] * len(graph)
    work = 0.0
    while heap:
        *priority, node = heappop(heap)
        if eliminated[node] or tuple(priority) != score(graph, sizes, node):
            continue
        eliminated[node] = True
        order.append(node)
        work += math.prod(sizes[neighbour] for neighbour in (node, *graph[node]))
        for neighbour in _remove(graph, node):
            if not eliminated[neighbour]:
                heappush(heap, (*score(graph, sizes, neighbour), neighbour))
    return order, work


def _remove(graph: list[set[int]], node: int) -> set[int]:
    """Connect the node's neighbours and take it out; return the nodes whose scores may have
    changed.
    """
    around = graph[node]
    touched = set(around)
    for a in around:
        graph[a] |= around
        graph[a] -= {a, node}
        touched |= graph[a]
    graph[node] = set()
    return touched
