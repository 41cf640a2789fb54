"""The best strategy by variable elimination (PaSE: Elango, 2021, arXiv 2407.04001).

Formulation: minimise the sum of node tables and edge tables over one configuration index a node.
Nodes are eliminated one after the other; eliminating v adds up every table that v is in and takes
the minimum over v, which leaves a table over v's neighbours (bucket elimination, Dechter, 1999).

* Parallel edges are added up first.
* A good order: the cheaper of min-fill and min-weight (``tree.py``).
* Tables are over classes of configurations that they do not tell apart (``classes.py``). Of v's
  configurations that no neighbour tells apart, the cheapest stands for all.
* A neighbour that shares only one pairwise table with v is split off: the other tables are added
  into A[rest, v], and the new table is the min-plus product of A and that pairwise table.
* What has been computed from the same tables is not computed again (``tables.py``): equal blocks of
  a network cost as much as one.
* The traceback walks the order backwards and recomputes each minimum over one vector; no argmin
  tables are kept.

Complexity: time the sum over nodes of K_v times the product over its neighbours' K; memory the
largest table. A table above the limit raises, it is never approximated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numba import njit

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.errors import UnsupportedError
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.classes import Classes
from gnnplace.sharding.solver.tables import (
    Buckets,
    Factor,
    Memo,
    make_buckets,
    pick_cells,
)

# Tables: the nodes of their axes, and their cells.
Cells = list[tuple[tuple[int, ...], FloatArray]]
MEMORY_LIMIT = 4e9  # Bytes of one table.
CHUNK = 1 << 24  # Cells of a sum that are there at once where nothing can be split off.
COLUMNS = 512  # Columns of B at once, so that the rows in use stay in the cache.


class TooLargeError(UnsupportedError):
    """An intermediate table above the memory limit."""


def cheapest(
    problem: ShardingProblem, order: Sequence[int], memory_limit: float = MEMORY_LIMIT
) -> tuple[int, ...]:
    """Return the configuration of least cost. [N]

    Args:
        problem: the cost tables of nodes and edges.
        order: The order in which nodes are eliminated.
        memory_limit: bytes that one intermediate table may take.

    Raises:
        TooLargeError: a table would be larger than that; says how large.
    """
    sizes = [len(cost) for cost in problem.cost]
    search = _Elimination(make_buckets(problem), sizes, memory_limit)
    eliminated = []
    for node in order:
        eliminated.append((node, search.eliminate(node)))
    return _trace_back(eliminated, sizes)


@dataclass
class _Elimination:
    """One elimination.

    Attributes:
        buckets: tables that are left.
        sizes: number of configurations of each node. [N]
        memory_limit: bytes of one table.
    """

    buckets: Buckets
    sizes: list[int]
    memory_limit: float

    def eliminate(self, node: int) -> list[Factor]:
        """Take a node out; return the tables it was in, for the traceback."""
        tables = self.buckets.take(node)
        scope = tuple(
            sorted(
                {neighbour for table in tables for neighbour in table.scope} - {node}
            )
        )
        if scope:
            memo = self.buckets.memo
            roles = (*scope, node)
            key = tuple(sorted(table.signature(roles) for table in tables))
            cost, classes = memo.of(
                key, tables, partial(self._eliminate, node, scope, tables)
            )
            self.buckets.add(Factor(scope, cost, classes))
        return tables

    def _eliminate(
        self, node: int, scope: tuple[int, ...], tables: list[Factor]
    ) -> tuple[FloatArray, tuple[Classes, ...]]:
        """Return the table that is left over ``scope``, and its classes."""
        memo = self.buckets.memo
        classes = {}
        for neighbour in scope:
            classes[neighbour] = _classes(memo, tables, neighbour)
        picked = {neighbour: part.first for neighbour, part in classes.items()}
        counts = {neighbour: len(part) for neighbour, part in picked.items()}
        self._check_size(counts.values())
        picked[node] = _representatives(memo, node, tables, self.sizes[node])
        cells = [(table.scope, pick_cells(table, picked)) for table in tables]
        counts[node] = len(picked[node])
        split = _splittable(node, cells)
        if split is None:
            return _minimum(cells, scope, node, counts), tuple(classes.values())
        product = self._product(cells, split, scope, node, counts)
        return product, tuple(classes.values())

    def _product(
        self,
        cells: Cells,
        split: int,
        scope: tuple[int, ...],
        node: int,
        counts: dict[int, int],
    ) -> FloatArray:
        """Return the min-plus product of all tables but ``split`` with that one. [counts of
        scope]
        """
        pair, pair_cost = cells[split]
        partner = pair[pair[0] == node]
        outer = tuple(neighbour for neighbour in scope if neighbour != partner)

        # A[outer, node] is the sum of all tables but the pair, B[node, partner] the pair.
        self._check_size([counts[k] for k in (*outer, node)])
        remaining = [*cells[:split], *cells[split + 1 :]]
        a = _sum(remaining, (*outer, node), counts)
        if pair[0] == node:
            b = pair_cost
        else:
            b = pair_cost.T
        product = min_plus(a.reshape(-1, counts[node]), np.ascontiguousarray(b))

        made_scope = (*outer, partner)
        shaped = product.reshape([counts[k] for k in made_scope])
        axes = [made_scope.index(k) for k in scope]
        return np.ascontiguousarray(shaped.transpose(axes))

    def _check_size(self, counts: Iterable[int]) -> None:
        need = 8.0 * math.prod(counts)
        if need > self.memory_limit:
            raise TooLargeError(
                f"sharding: an intermediate table would take {need:.3g} bytes, more than the limit "
                f"of {self.memory_limit:.3g}; use fewer configurations or raise the limit"
            )


def _classes(memo: Memo, tables: list[Factor], node: int) -> Classes:
    """Return the classes of a node's configurations that all tables together tell apart."""
    classes = [
        table.classes[table.scope.index(node)]
        for table in tables
        if node in table.scope
    ]
    return memo.joint(classes)


def _representatives(
    memo: Memo, node: int, tables: list[Factor], count: int
) -> LongArray:
    """Return the cheapest configuration of a node in every class that its neighbours tell apart."""
    together = _classes(memo, [table for table in tables if len(table.scope) > 1], node)
    if len(together) == count:
        return together.first
    unary = np.zeros(count)
    for table in tables:
        if len(table.scope) == 1:
            unary += table.cost[table.classes[0].of]
    order = np.lexsort((unary, together.of))
    return order[np.unique(together.of[order], return_index=True)[1]]


def _minimum(
    cells: Cells, scope: tuple[int, ...], node: int, counts: dict[int, int]
) -> FloatArray:
    """Return the minimum over ``node`` of the tables' sum, over a few configurations of the first
    neighbour at a time: the whole sum may be far larger than its minimum. [counts of scope]
    """
    first = scope[0]
    count = counts[first]
    cells_per_row = math.prod(counts[k] for k in (*scope[1:], node))
    step = max(1, CHUNK // cells_per_row)
    minima = []
    for low in range(0, count, step):
        rows = slice(low, low + step)
        restricted: Cells = []
        for axes, cost in cells:
            index = tuple(rows if k == first else slice(None) for k in axes)
            restricted.append((axes, cost[index]))
        restricted_counts = counts | {first: min(step, count - low)}
        total = _sum(restricted, (*scope, node), restricted_counts)
        minima.append(total.min(axis=-1))
    return np.concatenate(minima)


def _splittable(node: int, cells: Cells) -> int | None:
    """Return the largest pairwise table whose second node is in no further table."""
    num_tables = Counter(neighbour for scope, _ in cells for neighbour in scope)
    pairwise = [
        k
        for k, (scope, _) in enumerate(cells)
        if len(scope) == 2 and num_tables[scope[scope[0] == node]] == 1
    ]
    return max(pairwise, key=lambda k: cells[k][1].size, default=None)


def _sum(cells: Cells, scope: tuple[int, ...], counts: dict[int, int]) -> FloatArray:
    """Return the sum of tables over ``scope``, which contains all of theirs; axes as in
    ``scope``.
    """
    full_shape = [counts[node] for node in scope]
    total = np.zeros(full_shape)
    by_size = sorted(cells, key=lambda entry: entry[1].size)
    for axes, cost in by_size:
        places = [scope.index(axis) for axis in axes]
        permutation = sorted(range(len(axes)), key=places.__getitem__)
        shape = []
        for node in scope:
            shape.append(counts[node] if node in axes else 1)
        total += cost.transpose(permutation).reshape(shape)
    return total


def _trace_back(
    eliminated: list[tuple[int, list[Factor]]], sizes: list[int]
) -> tuple[int, ...]:
    """Return the best configuration of every node, from the last eliminated to the first. [N]"""
    configuration = [-1] * len(sizes)
    for node, tables in reversed(eliminated):
        total = np.zeros(sizes[node])
        for table in tables:
            pairs = zip(table.scope, table.classes, strict=True)
            total += table.cost[
                tuple(c.of if k == node else c.of[configuration[k]] for k, c in pairs)
            ]
        configuration[node] = int(total.argmin())
    return tuple(configuration)


@njit(cache=True, boundscheck=False, fastmath={"nnan", "ninf", "nsz"})
def min_plus(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the min-plus product C[i, j] = min over k of A[i, k] + B[k, j]. [R, S]

    The inner loop runs over j and is a chain of adds and minima that LLVM turns into vector code;
    four k at a time keep C in registers between loads. No argmin is kept: the traceback recomputes
    it.

    Args:
        a: [R, K]
        b: [K, S]
    """
    rows = a.shape[0]
    inner = a.shape[1]
    columns = b.shape[1]
    c = np.full((rows, columns), np.inf)
    unrolled = inner - inner % 4
    for begin in range(0, columns, COLUMNS):
        end = min(columns, begin + COLUMNS)
        for i in range(rows):
            out = c[i, begin:end]
            for k in range(0, unrolled, 4):
                a0 = a[i, k]
                a1 = a[i, k + 1]
                a2 = a[i, k + 2]
                a3 = a[i, k + 3]
                b0 = b[k, begin:end]
                b1 = b[k + 1, begin:end]
                b2 = b[k + 2, begin:end]
                b3 = b[k + 3, begin:end]
                for j in range(end - begin):
                    low = min(a0 + b0[j], a1 + b1[j])
                    high = min(a2 + b2[j], a3 + b3[j])
                    out[j] = min(out[j], min(low, high))
            for k in range(unrolled, inner):
                first = a[i, k]
                row = b[k, begin:end]
                for j in range(end - begin):
                    out[j] = min(out[j], first + row[j])
    return c


@njit(cache=True)
def min_plus_each(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the min-plus product of every pair of matrices. [W, R, S]"""
    c = np.empty((left.shape[0], left.shape[1], right.shape[2]))
    for w in range(left.shape[0]):
        c[w] = min_plus(left[w], right[w])
    return c
