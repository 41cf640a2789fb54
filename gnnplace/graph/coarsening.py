"""Coarsening: groups of ops that are placed and run as one, never making a cycle.

The lightest group is merged first, into the neighbour for which this delays other groups least. If
a, followed by b, becomes one group, the other successors of a wait for b, and a waits for the other
predecessors of b: `loss = cost(b) [a has other successors] + cost(a) [b has other predecessors]`.
Chains merge at no loss. Unlike the rule "merge only into an only neighbour", this also shrinks the
grids of unrolled recurrent networks. A merge that would close a cycle is refused: a topological
order of the groups is maintained (Pearce and Kelly, "A dynamic topological sort algorithm", JEA
2006), and only the window between the two groups is searched.

A group has one phase. Ops of a unit share a device; merging two groups of different units also
merges the units, which is allowed only while the cost of the unit is below a cap. Caps on the cost
of a group and on the loss of a merge begin low and double until there are as few groups as asked
for. The cap of a unit, the cost of a few groups, is raised late, because ops of one unit cannot be
placed on different devices afterwards.
Complexity: O(rounds * (ops * window + edges)). Deterministic; ties go to the smaller index.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import InputError
from gnnplace.graph.computation_graph import ComputationGraph

ROUNDS = 24
FIRST_CAP = 0.25  # Relative to the mean cost of a wished group
# Relative to the cost of its costliest op, beside which light ops may ride.
RIDERS = 1.3
# The largest loss, relative to the cap, at which two units are united; tuned on the zoo.
UNITING = 1 / 64
UNIT_GROUPS = 4.0  # a unit should be worth so many groups: forward, backward, update
FAR = 0.05  # weight of a delay in another phase; tuned on the zoo
WINDOW = 4096  # positions between two groups beyond which a merge is not tried


def coarsen(
    graph: ComputationGraph,
    cost: FloatArray,
    *,
    target: int = 200,
    unit: Sequence[str | None] | None = None,
    phase: NDArray[np.integer[Any]] | None = None,
    attach: IntArray | None = None,
) -> IntArray:
    """Group the ops of a graph.

    Args:
        graph: The graph whose ops are grouped.
        cost: Estimated seconds of each op; from structure alone, so that the groups are those of
            every capture of the model. [num_ops]
        target: Groups to aim at; more remain where merging would cost too much or make a cycle.
        unit: Class of ops that share a device, or None. [num_ops]
        phase: Ops of different phases stay in different groups. [num_ops]
        attach: Op that an op should never be parted from, -1 if none; followed where no cycle
            and no other phase forbids it. [num_ops]

    Returns:
        Group of each op, numbered in one topological order of the groups. [num_ops]

    Raises:
        InputError: The target is below 1, or an array has the wrong length.
    """
    n = graph.num_ops
    if target < 1:
        raise InputError(f"coarsening: target is {target}; give at least 1")
    for name, array in (
        ("cost", cost),
        ("unit", unit),
        ("phase", phase),
        ("attach", attach),
    ):
        if array is not None and len(array) != n:
            raise InputError(f"coarsening: {name} has {len(array)} entries, not {n}")
    if phase is None:
        phase = np.zeros(n, dtype=np.int8)
    groups = Contraction(graph, cost, unit or (None,) * n, phase)
    _attach(groups, attach)
    _shrink(groups, target, float(np.sum(cost)))
    return groups.number_groups()


def _attach(groups: Contraction, attach: IntArray | None) -> None:
    for op, anchor in enumerate([] if attach is None else attach.tolist()):
        a = groups.find(op)
        if anchor >= 0:
            b = groups.find(anchor)
        else:
            b = -1
        if b >= 0 and a != b and groups.compatible(a, b):
            groups.merge(*groups.order_pair(a, b))


def _shrink(groups: Contraction, target: int, total: float) -> None:
    mean = total / target
    cap = FIRST_CAP * mean
    for _ in range(ROUNDS):
        groups.merge_ends()
        unit_cap = max(UNIT_GROUPS * mean, cap / 2)
        while groups.count > target and _sweep(groups, target, cap, unit_cap):
            groups.merge_ends()
        if groups.count <= target:
            return
        cap *= 2


def _sweep(groups: Contraction, target: int, cap: float, unit_cap: float) -> bool:
    """Merge each group once at most, the lightest first. Return whether anything was merged."""
    merged = False
    for group in sorted(groups.alive(), key=lambda g: (groups.cost[g], g)):
        if groups.count <= target:
            return False
        if groups.is_alive(group) and groups.cost[group] <= cap:
            merged |= _merge_best(groups, group, cap, unit_cap)
    return merged


def _merge_best(groups: Contraction, group: int, cap: float, unit_cap: float) -> bool:
    """Merge a group into the neighbour where that delays others least."""
    options = []
    for a, b in groups.iterate_group_edges(group):
        neighbour = a if b == group else b
        loss = groups.loss(a, b)
        if _worth(groups, group, neighbour, loss, cap):
            options.append(
                (
                    loss,
                    not _same(groups, group, neighbour),
                    groups.cost[neighbour],
                    neighbour,
                    a,
                    b,
                )
            )
    for *_, neighbour, a, b in sorted(options):
        if groups.compatible(group, neighbour, unit_cap) and groups.merge(a, b):
            return True
    return False


def _worth(
    groups: Contraction, group: int, neighbour: int, loss: float, cap: float
) -> bool:
    """Return whether a merge is worth it: its loss and the cost of the result stay low.

    A group that is light beside a costly op may always join it.
    """
    limit = 2 * cap
    if loss > (cap / 2 if _same(groups, group, neighbour) else cap * UNITING):
        return False
    peak = max(groups.peak[group], groups.peak[neighbour])
    return groups.cost[group] + groups.cost[neighbour] <= max(limit, RIDERS * peak)


def _same(groups: Contraction, first: int, second: int) -> bool:
    """Return whether a merge would unite no units: they are equal, or one group has none."""
    x = groups.unit[first]
    y = groups.unit[second]
    return x is None or y is None or x == y


class Contraction:
    """Groups of ops; a group is known by one of its ops, its root.

    Args:
        graph: Its ops are the first groups.
        cost: Seconds of each op. [num_ops]
        unit: Class of ops that share a device, or None. [num_ops]
        phase: The phase of each op. [num_ops]

    Attributes:
        count: The number of groups that are left; it falls by one with every merge.
        cost: Seconds of each root's group.
        peak: Seconds of the costliest op in it.
        unit: Unit of each root's group; two units that were merged have one name.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        cost: FloatArray,
        unit: Sequence[str | None],
        phase: NDArray[np.integer[Any]],
    ) -> None:
        n = graph.num_ops
        self.count = n
        self.cost: list[float] = cost.tolist()
        self.peak: list[float] = cost.tolist()
        self._phase: list[int] = phase.tolist()
        self._root = list(range(n))
        self._after = [set(graph.successors(i).tolist()) for i in range(n)]
        self._before = [set(graph.predecessors(i).tolist()) for i in range(n)]
        self._at: list[int] = graph.topological_order.tolist()
        self._position: list[int] = graph.position.tolist()
        self._units = _Units(unit, self.cost)

    @property
    def unit(self) -> _Units:
        """Return the unit of each root's group, by index."""
        return self._units

    def find(self, op: int) -> int:
        """Return the root of the group of an op."""
        while self._root[op] != op:
            self._root[op] = self._root[self._root[op]]
            op = self._root[op]
        return op

    def is_alive(self, op: int) -> bool:
        """Return whether the op is the root of a group."""
        return self._root[op] == op

    def alive(self) -> list[int]:
        """Return the roots of all groups."""
        return [op for op in range(len(self._root)) if self._root[op] == op]

    def order_pair(self, one: int, other: int) -> tuple[int, int]:
        """Return two groups in their order."""
        if self._position[one] < self._position[other]:
            return (one, other)
        return (other, one)

    def iterate_group_edges(self, group: int) -> Iterator[tuple[int, int]]:
        """Yield the edges to and from groups of the same phase, as (before, after)."""
        phase = self._phase[group]
        for neighbour in self._before[group]:
            if self._phase[neighbour] == phase:
                yield neighbour, group
        for neighbour in self._after[group]:
            if self._phase[neighbour] == phase:
                yield group, neighbour

    def loss(self, one: int, other: int) -> float:
        """Return the seconds by which merging `one` with the later `other` may delay others."""
        delayed = self.cost[other] * self._waiting(self._after[one], other)
        return delayed + self.cost[one] * self._waiting(self._before[other], one)

    def _waiting(self, neighbours: set[int], one: int) -> float:
        """Return the weight of other neighbours: 1 for one of the same phase, else ``FAR`` or 0."""
        phase = self._phase[one]
        weight = 0.0
        for group in neighbours:
            if group != one:
                if self._phase[group] == phase:
                    return 1.0
                weight = FAR
        return weight

    def compatible(self, one: int, other: int, cap: float = 0.0) -> bool:
        """Return whether two groups may merge.

        Their phases must be equal, and their units equal or become one of at most `cap` seconds.
        """
        return (
            self._phase[one] == self._phase[other]
            and self._units.compute_joined_cost(one, other) <= cap
        )

    def merge(self, one: int, other: int) -> bool:
        """Merge `other` into `one`, which comes first in the order. Return whether it was done.

        They are not merged if that would make a cycle, or if they are too far apart in the order.
        """
        first = self._position[one]
        last = self._position[other]
        if last - first > WINDOW or not self._reorder(one, other, first, last):
            return False
        self._join(one, other)
        self._units.join(one, other)
        self.count -= 1
        return True

    def _reorder(self, one: int, other: int, first: int, last: int) -> bool:
        """Put all that `one` leads to behind `other`. Return False if another path leads there."""
        behind = self._follow_groups(one, other, last)
        if behind is None:
            return False
        window = [g for g in self._at[first + 1 : last] if g >= 0]
        order = (
            [g for g in window if g not in behind]
            + [one]
            + [g for g in window if g in behind]
        )
        padding = [-1] * (last - first + 1 - len(order))
        self._at[first : last + 1] = order + padding
        for i, group in enumerate(order, first):
            self._position[group] = i
        return True

    def _follow_groups(self, source: int, target: int, last: int) -> set[int] | None:
        """Return the groups before `last` in the order that `one` leads to.

        Returns None if one of them leads to `other`, since a merge would then make a cycle.
        """
        reached: set[int] = set()
        stack = [
            g for g in self._after[source] if g != target and self._position[g] < last
        ]
        while stack:
            group = stack.pop()
            if group in reached:
                continue
            reached.add(group)
            if target in self._after[group]:
                return None
            stack += [g for g in self._after[group] if self._position[g] < last]
        return reached

    def _join(self, one: int, other: int) -> None:
        self._root[other] = one
        self.cost[one] += self.cost[other]
        self.peak[one] = max(self.peak[one], self.peak[other])
        for follower in self._after[other]:
            self._before[follower].discard(other)
            self._before[follower].add(one)
        for leader in self._before[other]:
            self._after[leader].discard(other)
            self._after[leader].add(one)
        self._after[one] = (self._after[one] | self._after[other]) - {one, other}
        self._before[one] = (self._before[one] | self._before[other]) - {one, other}
        self._after[other], self._before[other] = set(), set()

    def merge_ends(self) -> None:
        """Merge groups of one unit and phase that lead nowhere, such as parameter updates."""
        ends: dict[tuple[Hashable, int], int] = {}
        for group in self.alive():
            unit = self._units[group]
            if self._after[group] or unit is None:
                continue
            key = (unit, self._phase[group])
            if key in ends and self.merge(*self.order_pair(ends[key], group)):
                ends[key] = self.find(group)
            else:
                ends[key] = group

    def number_groups(self) -> IntArray:
        """Return the group of each op, numbered by the order of the groups. [num_ops]"""
        order = [g for g in self._at if g >= 0 and self.is_alive(g)]
        number = {group: i for i, group in enumerate(order)}
        return np.array(
            [number[self.find(i)] for i in range(len(self._root))], dtype=np.int32
        )


class _Units:
    """The units of groups, and the cost of each over all phases."""

    def __init__(self, unit: Sequence[str | None], cost: Sequence[float]) -> None:
        self._of: list[str | None] = list(unit)
        self._same: dict[str, str] = {name: name for name in unit if name is not None}
        self._alone = list(cost)
        self._cost: dict[str, float] = {}
        for name, seconds in zip(unit, cost, strict=True):
            if name is not None:
                self._cost[name] = self._cost.get(name, 0.0) + seconds

    def __getitem__(self, group: int) -> str | None:
        name = self._of[group]
        while name is not None and self._same[name] != name:
            name = self._same[name]
        return name

    def compute_joined_cost(self, one: int, other: int) -> float:
        """Return the cost of the unit that joining two groups makes, or 0 if no two units meet."""
        x = self[one]
        y = self[other]
        if x is None or y is None or x == y:
            return 0.0
        return min(self._cost[x] + self._cost[y], math.inf)

    def join(self, one: int, other: int) -> None:
        """Record that group `other` goes into group `one`, and unite their units."""
        x = self[one]
        y = self[other]
        alone = sum(self._alone[g] for g, u in ((one, x), (other, y)) if u is None)
        self._alone[one] = alone
        if x is not None and y is not None and x != y:
            self._same[y] = x
            self._cost[x] += self._cost.pop(y)
        name = x if x is not None else y
        self._of[one] = name
        if name is not None:
            self._cost[name] += alone
            self._alone[one] = 0.0
