"""Tables of a problem as a few long arrays, for compiled code that walks over nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.tables import Table, buckets_of


class Flat(NamedTuple):
    """Tables of a problem, one behind the other; equal ones once.

    Attributes:
        start: where each node's costs begin. [N + 1]
        unary: costs of the nodes' configurations. [start[N]]
        ends: the two nodes of each pair, the earlier first. [E, 2]
        table: where each pair's table begins in ``cells``. [E]
        shape: classes of both nodes. [E, 2]
        cells: tables.
        lookup: where the classes of both nodes' configurations begin in ``classes``. [E, 2]
        classes: class numbers.
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


class _Store:
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
    cells, classes = _Store(), _Store()
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
