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

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Table:
    """A cost over some nodes' configurations.

    Attributes:
        scope: numbers of the nodes of its axes, ascending.
        cost: the cost of each combination of their classes; axes as in ``scope``.
        classes: the classes of each node's configurations.
    """

    scope: tuple[int, ...]
    cost: FloatArray
    classes: tuple[Classes, ...]

    def classes_of(self, node: int) -> Classes:
        """Classes of a node of the scope."""
        return self.classes[self.scope.index(node)]

    def signature(self, roles: Sequence[int]) -> tuple[int, ...]:
        """Tells tables apart that are not the same over nodes of the same roles."""
        places = [roles.index(node) for node in self.scope]
        return (id(self.cost), *map(id, self.classes), *places)


@dataclass
class Memo:
    """Results by the identity of what they were made from, which is kept with them."""

    made: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)

    def of(self, key: Hashable, source: Any, make: Callable[[], Made]) -> Made:
        """The result under ``key``, made on the first call.

        Args:
            key: from the identities of ``source``.
            source: kept, so that no other object gets its identity.
            make: what is called to make the result.
        """
        if key not in self.made:
            self.made[key] = (make(), source)
        found: Made = self.made[key][0]
        return found

    def joint(self, parts: Sequence[Classes]) -> Classes:
        """As ``classes.joint``."""
        return self.of(tuple(map(id, parts)), parts, partial(joint, parts))


def cells_of(table: Table, picked: Mapping[int, LongArray]) -> FloatArray:
    """A table's cells for ``picked`` configurations of each node."""
    cost = table.cost
    for axis, (node, classes) in enumerate(zip(table.scope, table.classes, strict=True)):
        rows = classes.of[picked[node]]
        if len(rows) != len(classes) or (rows != np.arange(len(rows))).any():
            cost = cost.take(rows, axis=axis)
    return cost


@dataclass
class Buckets:
    """Tables by the nodes they are over, while nodes are being eliminated."""

    tables: list[dict[int, Table]]
    memo: Memo = field(default_factory=Memo)
    count: int = 0

    def add(self, table: Table) -> None:
        """Tables over the same nodes become one, so that a neighbour can be split off."""
        for key, other in self.tables[table.scope[0]].items():
            if other.scope == table.scope:
                self._put(key, _added(self.memo, other, table))
                return
        self.count += 1
        self._put(self.count, table)

    def _put(self, key: int, table: Table) -> None:
        for node in table.scope:
            self.tables[node][key] = table

    def take(self, node: int) -> list[Table]:
        """Takes out all tables over ``node``."""
        found = dict(self.tables[node])
        for key, table in found.items():
            for other in table.scope:
                self.tables[other].pop(key, None)
        return list(found.values())


def _added(memo: Memo, first: Table, second: Table) -> Table:
    key = ("+", first.signature(first.scope), second.signature(second.scope))
    cost, classes = memo.of(key, (first, second), partial(_sum, memo, first, second))
    return Table(first.scope, cost, classes)


def _sum(memo: Memo, first: Table, second: Table) -> tuple[FloatArray, tuple[Classes, ...]]:
    """The sum of two tables over the same nodes, and its classes."""
    classes: dict[int, Classes] = {}
    for node, *parts in zip(first.scope, first.classes, second.classes, strict=True):
        classes[node] = memo.joint(parts)
    picked = {node: part.first for node, part in classes.items()}
    return cells_of(first, picked) + cells_of(second, picked), tuple(classes.values())


def buckets_of(problem: ShardingProblem) -> Buckets:
    """The tables of a problem; those of parallel edges are added up."""
    buckets = Buckets([{} for _ in problem.cost])
    memo = buckets.memo
    for node, cost in enumerate(problem.cost):
        alone: Classes = memo.of(len(cost), None, partial(each_alone, len(cost)))
        buckets.add(Table((node,), cost, (alone,)))
    for edge in problem.edges:
        key = ("edge", id(edge.cost), edge.u < edge.v)
        cells, classes = memo.of(key, edge, partial(_over_classes, edge))
        buckets.add(Table((min(edge.u, edge.v), max(edge.u, edge.v)), cells, classes))
    return buckets


def _over_classes(edge: Edge) -> tuple[FloatArray, tuple[Classes, ...]]:
    found = edge.over_classes or over_classes(edge.cost)
    if edge.u < edge.v:
        return found.cells, (found.rows, found.columns)
    return np.ascontiguousarray(found.cells.T), (found.columns, found.rows)


class Flat(NamedTuple):
    """Tables of a problem, one behind the other; equal ones once.

    Attributes:
        start: where each node's costs begin. [N + 1]
        unary: costs of the nodes' configurations. [start[N]]
        ends: the two nodes of each pair, the earlier first. [E, 2]
        table: where each pair's table begins in ``cells``. [E]
        shape: classes of both nodes. [E, 2]
        cells: the cells of all tables, one behind the other.
        lookup: where the classes of both nodes' configurations begin in ``classes``. [E, 2]
        classes: the class of each configuration, one table behind the other.
        message: where the messages to both nodes begin. [E, 2]
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
        if id(array) not in self.places:
            self.places[id(array)], self.end = self.end, self.end + array.size
            self.parts.append(array)
        return self.places[id(array)]

    def joined(self, kind: type) -> NDArray:
        return np.concatenate([np.zeros(0, kind), *(part.ravel() for part in self.parts)])


def flat_of(problem: ShardingProblem) -> Flat:
    """The tables of a problem; those of parallel edges are added up."""
    found: dict[int, Table] = {}
    for tables in buckets_of(problem).tables:
        found |= {key: table for key, table in tables.items() if len(table.scope) == 2}
    pairs = list(found.values())
    count = len(problem.cost)
    cells, classes = _ArrayRow(), _ArrayRow()
    ends = np.array([p.scope for p in pairs], np.int64).reshape(-1, 2)
    shape = np.array([p.cost.shape for p in pairs], np.int64).reshape(-1, 2)
    table = np.array([cells.add(p.cost) for p in pairs], np.int64)
    lookup = np.array([[classes.add(c.of) for c in p.classes] for p in pairs], np.int64)
    order = np.argsort(ends.ravel(), kind="stable") // 2
    degree = np.bincount(ends.ravel(), minlength=count)
    message = np.cumsum(np.append(0, shape.ravel()))[:-1].reshape(-1, 2)
    start = np.cumsum([0, *map(len, problem.cost)])
    return Flat(start, np.concatenate(problem.cost), ends, table, shape, cells.joined(np.float64),
                 lookup.reshape(-1, 2), classes.joined(np.int64), message, order,
                 np.append(0, np.cumsum(degree)))  # fmt: skip
