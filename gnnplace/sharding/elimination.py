"""Exact search by variable elimination (PaSE: Elango, 2021, arXiv 2407.04001).

Formulation: minimise the sum of node tables and edge tables over one configuration index a node.
Nodes are eliminated one after the other; eliminating v adds up every table that v is in and takes
the minimum over v, which leaves a table over v's neighbours (bucket elimination, Dechter, 1999).

* Parallel edges are added up first.
* The order is the cheaper of min-fill and min-weight (``ordering.py``).
* A neighbour that shares only one pairwise table with v is split off: the other tables are added
  into A[rest, v], and the new table is the min-plus product of A and that pairwise table.
* The traceback walks the order backwards and recomputes each minimum over one vector; no argmin
  tables are kept.

Complexity: time the sum over nodes of K_v times the product over its neighbours' K; memory the
largest table. A table above the limit raises, it is never approximated.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gnnplace.errors import UnsupportedError
from gnnplace.sharding.min_plus import min_plus
from gnnplace.sharding.ordering import elimination_order
from gnnplace.sharding.problem import ShardingProblem

FloatArray = NDArray[np.float64]
MEMORY_LIMIT = 4e9  # Bytes of one table.
CHUNK = 1 << 24  # Cells of a sum that are there at once where nothing can be split off.


@dataclass(frozen=True)
class ShardingResult:
    """The best strategy found.

    Attributes:
        configuration: configuration index of each node. [N]
        seconds: of the search alone.
        exact: whether it is proven to be the best.
    """

    cost: float
    memory: float | None
    configuration: tuple[int, ...]
    seconds: float
    exact: bool


@dataclass(frozen=True, eq=False)
class Table:
    """A cost over some nodes' configurations; axes as in ``scope``, which is ascending."""

    scope: tuple[int, ...]
    cost: FloatArray


@dataclass
class _Buckets:
    """Tables by the nodes they are over, while nodes are being eliminated."""

    tables: list[dict[int, Table]] = field(default_factory=list)
    count: int = 0

    def add(self, table: Table) -> None:
        """Tables over the same nodes become one, so that a neighbour can be split off."""
        for key, other in self.tables[table.scope[0]].items():
            if other.scope == table.scope:
                self._put(key, Table(table.scope, other.cost + table.cost))
                return
        self.count += 1
        self._put(self.count, table)

    def _put(self, key: int, table: Table) -> None:
        for node in table.scope:
            self.tables[node][key] = table

    def take(self, node: int) -> list[Table]:
        found = dict(self.tables[node])
        for key, table in found.items():
            for other in table.scope:
                self.tables[other].pop(key, None)
        return list(found.values())


def best_strategy(problem: ShardingProblem, memory_limit: float = MEMORY_LIMIT) -> ShardingResult:
    """The configuration of least cost.

    Args:
        problem: cost tables.
        memory_limit: bytes that one intermediate table may take.

    Raises:
        UnsupportedError: a table would be larger than that; says how large.
    """
    begin = time.perf_counter()
    sizes = [len(cost) for cost in problem.cost]
    pairs = combined_edges(problem)
    adjacency: list[set[int]] = [set() for _ in sizes]
    for u, v in pairs:
        adjacency[u].add(v)
        adjacency[v].add(u)
    order, _ = elimination_order(adjacency, sizes)
    buckets = _Buckets([{} for _ in sizes])
    for node, cost in enumerate(problem.cost):
        buckets.add(Table((node,), cost))
    for scope, cost in pairs.items():
        buckets.add(Table(scope, cost))
    eliminated = [(node, _eliminate(node, buckets, sizes, memory_limit)) for node in order]
    configuration = _trace_back(eliminated, sizes)
    seconds = time.perf_counter() - begin
    total, memory = problem.value(configuration), problem.bytes(configuration)
    return ShardingResult(total, memory, configuration, seconds, True)


def warm() -> None:
    """Compiles the kernels (or loads them from the cache), so that no search's seconds count it."""
    min_plus(np.zeros((1, 1)), np.zeros((1, 1)))


def combined_edges(problem: ShardingProblem) -> dict[tuple[int, int], FloatArray]:
    """Edge tables with parallel edges added up; the smaller node is the first axis."""
    pairs: dict[tuple[int, int], FloatArray] = {}
    for edge in problem.edges:
        key = (min(edge.u, edge.v), max(edge.u, edge.v))
        cost = edge.cost if edge.u < edge.v else edge.cost.T
        pairs[key] = pairs[key] + cost if key in pairs else cost
    return pairs


def _eliminate(node: int, buckets: _Buckets, sizes: list[int], memory_limit: float) -> list[Table]:
    """Takes ``node`` out; returns the tables it was in, for the traceback."""
    tables = buckets.take(node)
    scope = tuple(sorted({other for table in tables for other in table.scope} - {node}))
    if not scope:
        return tables
    _check_size(scope, sizes, memory_limit)
    split = _splittable(node, tables, sizes)
    if split is None:
        buckets.add(Table(scope, _minimum(tables, scope, node, sizes)))
        return tables
    rest = tuple(other for other in scope if other != split.scope[split.scope[0] == node])
    other = split.scope[split.scope[0] == node]
    _check_size((*rest, node), sizes, memory_limit)
    a = _sum([t for t in tables if t is not split], (*rest, node), sizes).reshape(-1, sizes[node])
    b = split.cost if split.scope[0] == node else split.cost.T
    product = min_plus(np.ascontiguousarray(a), np.ascontiguousarray(b))
    shaped = product.reshape([sizes[k] for k in (*rest, other)])
    axes = [(*rest, other).index(k) for k in scope]
    buckets.add(Table(scope, np.ascontiguousarray(shaped.transpose(axes))))
    return tables


def _minimum(
    tables: list[Table], scope: tuple[int, ...], node: int, sizes: list[int]
) -> FloatArray:
    """The minimum over ``node`` of the tables' sum, over a few configurations of the first
    neighbour at a time: the whole sum may be far larger than its minimum. [K of scope]
    """
    first, count = scope[0], sizes[scope[0]]
    step = max(1, CHUNK // math.prod(sizes[k] for k in (*scope[1:], node)))
    parts = []
    for low in range(0, count, step):
        part = [_slice(table, first, slice(low, low + step)) for table in tables]
        shape = [*sizes]
        shape[first] = min(step, count - low)
        parts.append(_sum(part, (*scope, node), shape).min(axis=-1))
    return np.concatenate(parts)


def _slice(table: Table, node: int, rows: slice) -> Table:
    index = tuple(rows if k == node else slice(None) for k in table.scope)
    return Table(table.scope, table.cost[index])


def _check_size(scope: tuple[int, ...], sizes: list[int], memory_limit: float) -> None:
    need = 8.0 * math.prod(sizes[node] for node in scope)
    if need > memory_limit:
        raise UnsupportedError(
            f"sharding: an intermediate table would take {need:.3g} bytes, more than the limit "
            f"of {memory_limit:.3g}; use fewer configurations or raise the limit"
        )


def _splittable(node: int, tables: list[Table], sizes: list[int]) -> Table | None:
    """The pairwise table whose other node is in no other table; the largest such."""
    counts: dict[int, int] = {}
    for table in tables:
        for other in table.scope:
            counts[other] = counts.get(other, 0) + 1
    pairwise = [
        table
        for table in tables
        if len(table.scope) == 2 and counts[table.scope[table.scope[0] == node]] == 1
    ]
    return max(pairwise, key=lambda table: table.cost.size, default=None)


def _sum(tables: list[Table], scope: tuple[int, ...], sizes: list[int]) -> FloatArray:
    """The sum of tables over ``scope``, which contains all of theirs; axes as in ``scope``."""
    total = np.zeros([sizes[node] for node in scope])
    for table in sorted(tables, key=lambda table: table.cost.size):
        axes = sorted(range(len(table.scope)), key=lambda k: scope.index(table.scope[k]))
        shape = [sizes[node] if node in table.scope else 1 for node in scope]
        total += table.cost.transpose(axes).reshape(shape)
    return total


def _trace_back(eliminated: list[tuple[int, list[Table]]], sizes: list[int]) -> tuple[int, ...]:
    chosen = [-1] * len(sizes)
    for node, tables in reversed(eliminated):
        total = np.zeros(sizes[node])
        for table in tables:
            index = tuple(slice(None) if k == node else chosen[k] for k in table.scope)
            total += table.cost[index]
        chosen[node] = int(total.argmin())
    return tuple(chosen)
