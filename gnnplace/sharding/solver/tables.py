"""Tables over classes of configurations, and what has been made of them already.

Equal layers share one array, so work on the same arrays (told by identity) is done once. ``Flat``
has the tables of a problem as a few long arrays, for compiled code that walks over nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.sharding.solver.classes import Classes, each_alone, joint, over_classes

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Factor:
    """A factor of the elimination: a cost table over the configurations of some nodes.

    Attributes:
        scope: numbers of the nodes of its axes, ascending.
        cost: the cost of each combination of their classes; axes as in ``scope``.
        classes: the classes of each node's configurations.
    """

    scope: tuple[int, ...]
    cost: FloatArray
    classes: tuple[Classes, ...]

    def signature(self, roles: Sequence[int]) -> tuple[int, ...]:
        """Return a key that differs for tables that are not the same over nodes of the same
        roles.
        """
        places = [roles.index(node) for node in self.scope]
        return (id(self.cost), *map(id, self.classes), *places)


@dataclass
class Memo:
    """Results by the identity of what they were made from, which is kept with them."""

    results: dict[Hashable, tuple[Any, object]] = field(default_factory=dict)

    def of(self, key: Hashable, source: object, make: Callable[[], Result]) -> Result:
        """Return the result under ``key``, made on the first call.

        Args:
            key: A key made of the identities of ``source``.
            source: kept, so that no other object gets its identity.
            make: what is called to make the result.
        """
        if key not in self.results:
            self.results[key] = (make(), source)
        result: Result = self.results[key][0]
        return result

    def joint(self, parts: Sequence[Classes]) -> Classes:
        """Return the joint partition, as ``classes.joint`` does."""
        return self.of(tuple(map(id, parts)), parts, partial(joint, parts))


def pick_cells(table: Factor, picked: Mapping[int, LongArray]) -> FloatArray:
    """Return a table's cells for ``picked`` configurations of each node."""
    cost = table.cost
    for axis, (node, classes) in enumerate(
        zip(table.scope, table.classes, strict=True)
    ):
        rows = classes.of[picked[node]]
        in_order = np.arange(len(rows))
        if len(rows) != len(classes) or (rows != in_order).any():
            cost = cost.take(rows, axis=axis)
    return cost


@dataclass
class Buckets:
    """Tables by the nodes they are over, while nodes are being eliminated."""

    tables: list[dict[int, Factor]]
    memo: Memo = field(default_factory=Memo)
    count: int = 0

    def add(self, table: Factor) -> None:
        """Add a table. Tables over the same nodes become one, so that a neighbour can be
        split off.
        """
        for key, present in self.tables[table.scope[0]].items():
            if present.scope == table.scope:
                self._put(key, _add_tables(self.memo, present, table))
                return
        self.count += 1
        self._put(self.count, table)

    def _put(self, key: int, table: Factor) -> None:
        for node in table.scope:
            self.tables[node][key] = table

    def take(self, node: int) -> list[Factor]:
        """Take out all tables over ``node``."""
        tables = dict(self.tables[node])
        for key, table in tables.items():
            for neighbour in table.scope:
                self.tables[neighbour].pop(key, None)
        return list(tables.values())


def _add_tables(memo: Memo, first: Factor, second: Factor) -> Factor:
    key = ("+", first.signature(first.scope), second.signature(second.scope))
    cost, classes = memo.of(key, (first, second), partial(_sum, memo, first, second))
    return Factor(first.scope, cost, classes)


def _sum(
    memo: Memo, first: Factor, second: Factor
) -> tuple[FloatArray, tuple[Classes, ...]]:
    """Return the sum of two tables over the same nodes, and its classes."""
    classes: dict[int, Classes] = {}
    for node, *parts in zip(first.scope, first.classes, second.classes, strict=True):
        classes[node] = memo.joint(parts)
    picked = {node: part.first for node, part in classes.items()}
    cells = pick_cells(first, picked) + pick_cells(second, picked)
    return cells, tuple(classes.values())


def make_buckets(problem: ShardingProblem) -> Buckets:
    """Return the tables of a problem; those of parallel edges are added up."""
    buckets = Buckets([{} for _ in problem.cost])
    memo = buckets.memo
    for node, cost in enumerate(problem.cost):
        alone: Classes = memo.of(len(cost), None, partial(each_alone, len(cost)))
        buckets.add(Factor((node,), cost, (alone,)))
    for edge in problem.edges:
        key = ("edge", id(edge.cost), edge.u < edge.v)
        cells, classes = memo.of(key, edge, partial(_over_classes, edge))
        first = min(edge.u, edge.v)
        second = max(edge.u, edge.v)
        buckets.add(Factor((first, second), cells, classes))
    return buckets


def _over_classes(edge: Edge) -> tuple[FloatArray, tuple[Classes, ...]]:
    """Return an edge's cells over classes, and the classes of its nodes, the earlier node first."""
    table = edge.over_classes or over_classes(edge.cost)
    if edge.u < edge.v:
        cells = table.cells
        classes = table.rows, table.columns
    else:
        cells = np.ascontiguousarray(table.cells.T)
        classes = table.columns, table.rows
    return cells, classes


class Flat(NamedTuple):
    """Tables of a problem, one behind the other; equal ones once.

    Attributes:
        start: Index where each node's costs begin. [N + 1]
        unary: costs of the nodes' configurations. [start[N]]
        ends: the two nodes of each pair, the earlier first. [E, 2]
        table: Index where each pair's table begins in ``cells``. [E]
        shape: classes of both nodes. [E, 2]
        cells: the cells of all tables, one behind the other.
        lookup: Index where the classes of both nodes' configurations begin in ``classes``. [E, 2]
        classes: the class of each configuration, one table behind the other.
        message: Index where the messages to both nodes begin. [E, 2]
        incident: pairs of each node, from ``first[node]`` on.
        first: [N + 1]
    """

    start: LongArray
    unary: FloatArray
    ends: LongArray
    table: LongArray
    shape: LongArray
    cells: FloatArray
    lookup: LongArray
    classes: LongArray
    message: LongArray
    incident: LongArray
    first: LongArray


class _ArrayRow:
    """Arrays one behind the other; one that is there already is not added again."""

    def __init__(self) -> None:
        self.parts: list[NDArray] = []
        self.places: dict[int, int] = {}
        self.end = 0

    def add(self, array: NDArray) -> int:
        """Add an array, unless it is there; return the index where it begins."""
        key = id(array)
        if key not in self.places:
            self.places[key] = self.end
            self.end += array.size
            self.parts.append(array)
        return self.places[key]

    def joined(self, kind: type) -> NDArray:
        return np.concatenate(
            [np.zeros(0, kind), *(part.ravel() for part in self.parts)]
        )


def make_flat_tables(problem: ShardingProblem) -> Flat:
    """Return the tables of a problem; those of parallel edges are added up."""
    # A table is in the buckets of both of its nodes, under one key.
    pair_tables: dict[int, Factor] = {}
    for tables in make_buckets(problem).tables:
        for key, bucket_table in tables.items():
            if len(bucket_table.scope) == 2:
                pair_tables[key] = bucket_table
    pairs = list(pair_tables.values())
    count = len(problem.cost)

    # Where each pair's cells, classes and messages begin; equal arrays stand in the rows once.
    cells = _ArrayRow()
    classes = _ArrayRow()
    ends = np.array([p.scope for p in pairs], np.int64).reshape(-1, 2)
    shape = np.array([p.cost.shape for p in pairs], np.int64).reshape(-1, 2)
    table = np.array([cells.add(p.cost) for p in pairs], np.int64)
    places = [[classes.add(end.of) for end in pair.classes] for pair in pairs]
    lookup = np.array(places, np.int64)

    # Pairs by node, for walks from a node to its neighbours.
    order = np.argsort(ends.ravel(), kind="stable") // 2
    degree = np.bincount(ends.ravel(), minlength=count)
    begins = np.cumsum(np.append(0, shape.ravel()))[:-1]
    message = begins.reshape(-1, 2)
    start = np.cumsum([0, *map(len, problem.cost)])
    return Flat(
        start=start,
        unary=np.concatenate(problem.cost),
        ends=ends,
        table=table,
        shape=shape,
        cells=cells.joined(np.float64),
        lookup=lookup.reshape(-1, 2),
        classes=classes.joined(np.int64),
        message=message,
        incident=order,
        first=np.append(0, np.cumsum(degree)),
    )
