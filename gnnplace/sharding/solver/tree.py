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
        node: that is taken out; None where two tables are only added.
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
        """Nodes of the sum: the scope, then the node."""
        return self.scope if self.node is None else (*self.scope, self.node)


@dataclass(frozen=True, eq=False)
class Factors:
    """Tables of time and memory: one a node, then one a pair of nodes with an edge.

    Attributes:
        scopes: the nodes of each, ascending.
        kept: configurations of each node that are still in the tables.
    """

    scopes: tuple[Scope, ...]
    time: tuple[FloatArray, ...]
    memory: tuple[FloatArray, ...]
    kept: tuple[LongArray, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Configurations of each node that are left."""
        return tuple(len(kept) for kept in self.kept)

    def weighted(self, weights: Sequence[tuple[float, float]]) -> list[FloatArray]:
        """``weight[0] * time + weight[1] * memory`` of every table; equal ones are one
        array. [W, K of scope]
        """
        of_time, of_memory = np.array(weights, dtype=np.float64).reshape(-1, 2).T
        made: dict[tuple[int, int], FloatArray] = {}
        for time, memory in zip(self.time, self.memory, strict=True):
            key = (id(time), id(memory))
            if key not in made:
                parts = np.multiply.outer(of_time, time), np.multiply.outer(of_memory, memory)
                made[key] = parts[0] + parts[1]
        return [made[id(t), id(m)] for t, m in zip(self.time, self.memory, strict=True)]

    def restrict(self, masks: Sequence[BoolArray]) -> Factors:
        """Without the configurations whose mask is false."""

        def cut(table: FloatArray, scope: Scope) -> FloatArray:
            return np.ascontiguousarray(table[np.ix_(*(masks[node] for node in scope))])

        return Factors(
            self.scopes,
            tuple(cut(t, s) for t, s in zip(self.time, self.scopes, strict=True)),
            tuple(cut(m, s) for m, s in zip(self.memory, self.scopes, strict=True)),
            tuple(kept[mask] for kept, mask in zip(self.kept, masks, strict=True)),
        )


def factors_of(problem: ShardingProblem) -> Factors:
    """The tables of a problem; parallel edges added up, missing memory zero."""
    memories = problem.memory or (None,) * len(problem.names)
    pairs = combined_edges(problem)
    bytes_ = [Edge(e.u, e.v, np.zeros_like(e.cost) if e.memory is None else e.memory)
              for e in problem.edges]  # fmt: skip
    of_bytes = ShardingProblem("", 1, problem.names, problem.cost, tuple(bytes_))
    pair_bytes = combined_edges(of_bytes)
    nodes = zip(problem.cost, memories, strict=True)
    own = [np.zeros_like(cost) if memory is None else memory for cost, memory in nodes]
    return Factors(
        (*((i,) for i in range(len(own))), *pairs),
        (*problem.cost, *pairs.values()),
        (*own, *(pair_bytes[key] for key in pairs)),
        tuple(np.arange(len(cost)) for cost in problem.cost),
    )


def combined_edges(problem: ShardingProblem) -> dict[tuple[int, int], FloatArray]:
    """Edge tables with parallel edges added up; the smaller node is the first axis."""
    pairs: dict[tuple[int, int], FloatArray] = {}
    for edge in problem.edges:
        key = (min(edge.u, edge.v), max(edge.u, edge.v))
        cost = edge.cost if edge.u < edge.v else edge.cost.T
        pairs[key] = pairs[key] + cost if key in pairs else cost
    return pairs


def elimination_tree(factors: Factors) -> tuple[Step, ...]:
    """The steps, children first; the last is the root and has an empty scope."""
    sizes = factors.sizes
    adjacency: list[set[int]] = [set() for _ in sizes]
    for scope in factors.scopes[len(sizes) :]:
        adjacency[scope[0]].add(scope[1])
        adjacency[scope[1]].add(scope[0])
    steps: list[Step] = []
    waiting = set(range(len(factors.scopes)))  # Tables not taken yet: factors here,
    open_steps: list[int] = []  # and steps here.
    for node in elimination_order(adjacency, sizes)[0]:
        mine = tuple(k for k in sorted(waiting) if node in factors.scopes[k])
        waiting -= set(mine)
        below = [k for k in open_steps if node in steps[k].scope]
        open_steps = [k for k in open_steps if k not in below]
        below = _join(steps, below)
        around = {n for k in mine for n in factors.scopes[k]}
        around |= {n for k in below for n in steps[k].scope}
        steps.append(Step(node, tuple(sorted(around - {node})), mine, tuple(below)))
        open_steps.append(len(steps) - 1)
    roots = _join(steps, open_steps)
    if len(roots) > 1:
        steps.append(Step(None, (), (), tuple(roots)))
    return tuple(steps)


def _join(steps: list[Step], tables: list[int]) -> list[int]:
    """Adds steps that add up tables until two are left; small ones first."""
    left = sorted(tables, key=lambda k: len(steps[k].scope))
    while len(left) > 2:
        scope = tuple(sorted({*steps[left[0]].scope, *steps[left[1]].scope}))
        steps.append(Step(None, scope, (), (left[0], left[1])))
        left = sorted([*left[2:], len(steps) - 1], key=lambda k: len(steps[k].scope))
    return left


def spread(table: FloatArray, scope: Scope, axes: Scope) -> FloatArray:
    """``table`` over ``scope`` as an array that broadcasts over ``axes``."""
    present = [node for node in axes if node in scope]
    turned = table.transpose([scope.index(node) for node in present])
    sizes = dict(zip(present, turned.shape, strict=True))
    return turned.reshape([sizes.get(node, 1) for node in axes])


def check_cells(shape: Sequence[int]) -> None:
    """Raises TableTooLargeError if an array would have more cells than ``CELL_LIMIT``."""
    if math.prod(shape) > CELL_LIMIT:
        raise TableTooLargeError(
            f"frontier: a table of {math.prod(shape):.3g} cells is more than the limit of "
            f"{CELL_LIMIT:.3g}; use fewer configurations, or ask for the best strategy alone"
        )


def step_sum(
    step: Step, tables: Sequence[FloatArray], scopes: Sequence[Scope], sizes: Sequence[int]
) -> FloatArray:
    """The sum of ``tables`` over the step's axes.

    Raises:
        TableTooLargeError: it would have more cells than ``CELL_LIMIT``.
    """
    return add_up(step.axes, tables, scopes, [sizes[node] for node in step.axes])


def add_up(
    axes: Scope, tables: Sequence[FloatArray], scopes: Sequence[Scope], shape: Sequence[int]
) -> FloatArray:
    """The sum of ``tables`` over ``axes``, which contain all of ``scopes``.

    Raises:
        TableTooLargeError: it would have more cells than ``CELL_LIMIT``.
    """
    check_cells(shape)
    total = np.zeros(shape)
    for table, scope in zip(tables, scopes, strict=True):
        total += spread(table, scope, axes)
    return total


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
    order, work = _better_order(tuple(map(frozenset, adjacency)), tuple(sizes))
    return list(order), work


@lru_cache(maxsize=256)  # one graph is solved with many tables
def _better_order(
    adjacency: tuple[frozenset[int], ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], float]:
    found = [_greedy(adjacency, sizes, score) for score in (min_fill, min_weight)]
    order, work = min(found, key=lambda entry: entry[1])
    return tuple(order), work


def _greedy(
    adjacency: Sequence[frozenset[int]], sizes: Sequence[int], score: Score
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
