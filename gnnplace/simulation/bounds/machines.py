"""What must be on one device, which devices it may be on, and how long it takes there.

Parts are placement units, or units that are known to be on one device together: those that only
one device is left to. A device is left to a part that allows it and whose state it holds. Devices
of one kind are alike, a column of tables, but for those that ops are pinned to; and those that are
forbidden to other ops are not alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.problem import Problem
from gnnplace.simulation.bounds.copies import Copies

ROOM = 1.0 + 1e-9  # Of memory, for sums in another order.


@dataclass(frozen=True, eq=False)
class Machines:
    """P parts on devices of K columns.

    Attributes:
        part: part of each group of copies. [G]
        allowed: whether a device is left to each part. [P, D]
        state: bytes of each part. [P]
        memory: bytes of each device. [D]
        column_of: column of each device. [D]
        times: seconds of an op of each group on devices of each column. [G, K]
    """

    part: IntArray
    allowed: BoolArray
    state: FloatArray
    memory: FloatArray
    column_of: NDArray[np.intp]
    times: FloatArray

    @property
    def possible(self) -> bool:
        """Whether every part has a device left."""
        return bool(self.allowed.any(axis=1).all())

    @property
    def counts(self) -> FloatArray:
        """Devices of each column. [K]"""
        return np.bincount(self.column_of).astype(np.float64)

    def columns(self) -> FloatArray:
        """Seconds of an op of each group, inf where its part may not be, 0 if nowhere. [G, K]"""
        num_columns = self.times.shape[1]
        left = np.stack([self.allowed[:, self.column_of == k].any(1) for k in range(num_columns)])
        result = np.where(left.T[self.part], self.times, np.inf)
        result[~np.isfinite(result).any(axis=1)] = 0.0
        return np.ascontiguousarray(result)

    def apart(self, source: IntArray, target: IntArray) -> BoolArray:
        """Whether no device is left to two parts together, by pairs of parts."""
        both = self.allowed[source] & self.allowed[target]
        state = self.state[source] + self.state[target]
        room = state[:, None] <= self.memory * ROOM
        return np.asarray((source != target) & ~(both & room).any(axis=1))

    def joined(self, source: IntArray, target: IntArray) -> Machines:
        """The same with pairs of parts on one device."""
        count = len(self.state)
        pairs = coo_array((np.ones(len(source)), (source, target)), shape=(count, count))
        num_parts, label = connected_components(pairs, directed=False)
        allowed = np.ones((num_parts, len(self.memory)), dtype=bool)
        np.logical_and.at(allowed, label, self.allowed)
        state = np.bincount(label, self.state, num_parts).astype(np.float64)
        allowed &= state[:, None] <= self.memory * ROOM
        part = label[self.part].astype(np.int32)
        return _settled(replace(self, part=part, allowed=allowed, state=state))


def machines_of(problem: Problem, copies: Copies) -> Machines:
    """The parts of ``problem`` as it is."""
    pinned = np.unique(problem.pin[problem.pin >= 0])
    kind = problem.kind_of.copy()
    kind[pinned] = len(problem.cluster.kinds) + np.arange(len(pinned))
    if problem.forbid is not None:
        alike = np.unique(problem.forbid, axis=1, return_inverse=True)[1].ravel()
        kind = kind * (int(alike.max()) + 1) + alike
    _, first, column_of = np.unique(kind, return_index=True, return_inverse=True)
    by_group = np.argsort(copies.of, kind="stable")
    times = problem.kind_times.take(problem.kind_of[first], axis=1)[by_group]
    memory = problem.cluster.memory
    room = problem.unit_state[:, None] <= memory * ROOM
    return _settled(
        Machines(
            part=problem.unit_of[copies.first],
            allowed=problem.unit_allowed & room,
            state=problem.unit_state,
            memory=memory,
            column_of=column_of,
            times=np.minimum.reduceat(times, copies.begin[:-1], axis=0),
        )
    )


def _settled(machines: Machines) -> Machines:
    """Parts with one device left are one part for each such device, again and again."""
    sole = np.flatnonzero(machines.allowed.sum(axis=1) == 1)
    device = machines.allowed[sole].argmax(axis=1)
    if len(np.unique(device)) == len(sole):
        return machines
    first = np.full(len(machines.memory), -1)
    first[device[::-1]] = sole[::-1]
    return machines.joined(first[device].astype(np.int32), sole.astype(np.int32))
