"""One relaxation of a problem: every part is on one device; and the bounds that follow from it.

Parts (``Machines``) are placement units, or sets of units that must share a device because only one
device is possible for each of them. A device is possible for a part if the part allows it and its
state fits. Devices of one kind are identical and share a column of the tables, except devices to
which ops are pinned, and devices that are forbidden to different ops.

``ancestors`` finds which ops of a unit precede which others of it on any path of the graph: sets of
64 ops, as the bits of one word, are propagated through the whole graph, in O(n / 64) sweeps of
O(edges). Only ops of units with several ops have a bit, and only as many as ``MOST_STEPS`` allows:
in a graph of 100,000 ops, those of the largest units that are not too large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import components, downward_rank, empty_ints, kernel, zero_longs
from gnnplace.problem import Problem
from gnnplace.simulation.bounds.copies import (
    Copies,
    find_copies,
    offsets,
    sort_by_rank,
    starts,
)
from gnnplace.simulation.bounds.one_machine import (
    bound_units,
    fill,
    sort_jobs_by_unit,
    windows,
)
from gnnplace.simulation.bounds.work_and_path import UPDATES, work_weights
from gnnplace.simulation.compiled import compute_least_times, tails
from gnnplace.simulation.transfer import compute_least_seconds

MOST_PAIRS = 4_000_000  # Pairs of ops of one unit, in all units together: 32 MB
MOST_STEPS = 60_000_000  # ops and edges that all sweeps together may pass: 0.2 s
BITS = 63
ROOM = 1.0 + 1e-9  # A factor of memory, because sums in another order differ


def ancestors(copies: Copies, unit: IntArray) -> tuple[IntArray, IntArray]:
    """Return the ancestors of each group of copies in its own unit: offsets and a list. [G + 1]

    Only paths along edges that feed every copy count. Two limits leave out units, which then have
    no ancestors: ``MOST_PAIRS`` the largest ones, and then ``MOST_STEPS`` the smallest ones.

    Args:
        copies: The ops in groups of copies.
        unit: Unit of each group. [G]
    """
    num_groups = len(unit)
    num_members = np.bincount(unit)
    num_units = len(num_members)

    # Units of several groups, as many of the smallest ones as have ``MOST_PAIRS`` pairs together.
    pairs = num_members.astype(np.int64) * (num_members - 1) // 2
    smallest_first = np.argsort(pairs, kind="stable")
    fits_pairs = pairs[smallest_first].cumsum() <= MOST_PAIRS
    is_included = np.zeros(num_units, dtype=bool)
    is_included[smallest_first] = fits_pairs & (num_members[smallest_first] > 1)

    # Of these, as many of the largest ones as have a bit for each group in all sweeps.
    full = copies.full
    sweeps = MOST_STEPS // (num_groups + int(full.sum()) + 1)
    largest_first = smallest_first[::-1]
    largest_first = largest_first[is_included[largest_first]]
    exceeds_bits = num_members[largest_first].cumsum() > BITS * sweeps
    is_included[largest_first[exceeds_bits]] = False
    num_pairs = int(pairs[is_included].sum())
    if num_pairs == 0:
        return np.zeros(num_groups + 1, dtype=np.int32), np.zeros(0, dtype=np.int32)

    # Groups of these units, unit after unit, get a bit each.
    groups = np.flatnonzero(is_included[unit])
    bit = groups[np.argsort(unit[groups], kind="stable")].astype(np.int32)
    later, earlier = _pairs(
        copies.order,
        offsets(copies.target[full], num_groups),
        copies.source[full],
        unit,
        offsets(unit[bit], num_units),
        bit,
        num_pairs,
    )
    by_later = np.argsort(later, kind="stable")
    return offsets(later, num_groups), earlier[by_later]


def transpose_relation(
    relation: tuple[IntArray, IntArray],
) -> tuple[IntArray, IntArray]:
    """Return the relation the other way round: descendants, of ancestors."""
    offset, earlier = relation
    later = np.repeat(np.arange(len(offset) - 1, dtype=np.int32), np.diff(offset))
    return offsets(earlier, len(offset) - 1), later[np.argsort(earlier, kind="stable")]


@kernel
def _pairs(
    order: IntArray,
    offset: IntArray,
    source: IntArray,
    unit: IntArray,
    bit_offset: IntArray,
    bit: IntArray,
    most: int,
) -> tuple[IntArray, IntArray]:
    """Return the pairs of groups of one unit, one of them after the other; the later and the
    earlier.

    Args:
        order: groups, producers first. [G]
        offset: Index where the edges into each group start. [G + 1]
        source: where they come from.
        unit: the unit of each group. [G]
        bit_offset: Index where the groups of each unit start in ``bit``. [U + 1]
        bit: groups of units of several groups, by unit.
        most: pairs to make room for.
    """
    later = empty_ints(most)
    earlier = empty_ints(most)
    count = 0
    ancestor_bits = zero_longs(len(order))
    own_bit = zero_longs(len(order))
    for low in range(0, len(bit), BITS):
        high = min(low + BITS, len(bit))
        for i in range(low, high):
            own_bit[bit[i]] = 1 << (i - low)
        for x in order:
            reached = 0
            for e in range(offset[x], offset[x + 1]):
                reached |= ancestor_bits[source[e]] | own_bit[source[e]]
            ancestor_bits[x] = reached
            if reached != 0 and bit_offset[unit[x] + 1] > bit_offset[unit[x]]:
                first = max(low, bit_offset[unit[x]])
                last = min(high, bit_offset[unit[x] + 1])
                for i in range(first, last):
                    if reached >> (i - low) & 1:
                        later[count], earlier[count] = x, bit[i]
                        count += 1
        for i in range(low, high):
            own_bit[bit[i]] = 0
    return later[:count], earlier[:count]


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
        """Return whether every part has a device left."""
        return bool(self.allowed.any(axis=1).all())

    @property
    def counts(self) -> FloatArray:
        """Return the devices of each column. [K]"""
        return np.bincount(self.column_of).astype(np.float64)

    def columns(self) -> FloatArray:
        """Return the seconds of an op of each group, inf where its part may not be, 0 if nowhere.
        [G, K]
        """
        num_columns = self.times.shape[1]
        allowed_columns = np.stack(
            [self.allowed[:, self.column_of == k].any(1) for k in range(num_columns)]
        )
        result = np.where(allowed_columns.T[self.part], self.times, np.inf)
        result[~np.isfinite(result).any(axis=1)] = 0.0
        return np.ascontiguousarray(result)

    def apart(self, source: IntArray, target: IntArray) -> BoolArray:
        """Return whether no device is left to two parts together, by pairs of parts."""
        both = self.allowed[source] & self.allowed[target]
        state = self.state[source] + self.state[target]
        room = state[:, None] <= self.memory * ROOM
        return np.asarray((source != target) & ~(both & room).any(axis=1))

    def joined(self, source: IntArray, target: IntArray) -> Machines:
        """Return the same with pairs of parts on one device."""
        label = components(
            source.astype(np.int32), target.astype(np.int32), len(self.state)
        )
        num_parts = int(label.max(initial=-1)) + 1
        allowed = np.ones((num_parts, len(self.memory)), dtype=bool)
        np.logical_and.at(allowed, label, self.allowed)
        state = np.bincount(label, self.state, num_parts).astype(np.float64)
        allowed &= state[:, None] <= self.memory * ROOM
        part = label[self.part].astype(np.int32)
        return _settle_parts(replace(self, part=part, allowed=allowed, state=state))


def list_machines(problem: Problem, copies: Copies) -> Machines:
    """Return the parts of ``problem`` as it is."""
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
    return _settle_parts(
        Machines(
            part=problem.unit_of[copies.first],
            allowed=problem.unit_allowed & room,
            state=problem.unit_state,
            memory=memory,
            column_of=column_of,
            times=np.minimum.reduceat(times, copies.begin[:-1], axis=0),
        )
    )


def _settle_parts(machines: Machines) -> Machines:
    """Make parts with one device left one part for each such device, again and again."""
    sole = np.flatnonzero(machines.allowed.sum(axis=1) == 1)
    device = machines.allowed[sole].argmax(axis=1)
    if len(np.unique(device)) == len(sole):
        return machines
    first = np.full(len(machines.memory), -1)
    first[device[::-1]] = sole[::-1]
    return machines.joined(first[device].astype(np.int32), sole.astype(np.int32))


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Copies of ops, on parts that are on one device each.

    Attributes:
        copies: the ops by groups of copies.
        machines: their parts, and the devices that are left to them.
        crossing: least seconds of a transfer along each edge. [E]
        service: least seconds that it holds its link. [E]
        least_head: heads that are known already, by rank. [n]
        least_tail: tails that are known already, by rank. [n]
    """

    copies: Copies
    machines: Machines
    crossing: FloatArray
    service: FloatArray
    least_head: FloatArray
    least_tail: FloatArray

    @classmethod
    def of(cls, problem: Problem) -> Relaxation:
        """Return the relaxation of a problem as it is."""
        copies = find_copies(problem)
        graph = problem.graph
        head = downward_rank(
            graph, compute_least_times(problem), np.zeros(len(graph.successor))
        )
        crossing, service = compute_least_seconds(problem.cluster, copies.size)
        heads_and_tails = (
            sort_by_rank(copies, head),
            sort_by_rank(copies, tails(problem)),
        )
        return cls(
            copies, list_machines(problem, copies), crossing, service, *heads_and_tails
        )

    def with_machines(self, machines: Machines) -> Relaxation:
        """Return the same copies on other parts; heads and tails that were found still hold."""
        return replace(
            self, machines=machines, least_head=self.head, least_tail=self.tail
        )

    @cached_property
    def columns(self) -> FloatArray:
        """Return the seconds of a group's op on each kind of device, inf if impossible. [G, K]"""
        return self.machines.columns()

    @cached_property
    def work(self) -> FloatArray:
        """Return the least seconds of an op of each group. [G]"""
        return np.asarray(self.columns.min(axis=1))

    @cached_property
    def part_columns(self) -> FloatArray:
        """Return the seconds of each part. [P, K]"""
        shape = len(self.machines.state), self.columns.shape[1]
        result = np.zeros(shape)
        np.add.at(result, self.machines.part, self.columns * self.copies.count[:, None])
        return result

    @cached_property
    def _inside(self) -> tuple[IntArray, IntArray]:
        return ancestors(self.copies, self.machines.part)

    @cached_property
    def apart(self) -> FloatArray:
        """Return the seconds of transfers that the devices left to both ends do not force. [E]"""
        part = self.machines.part
        apart = self.machines.apart(part[self.copies.source], part[self.copies.target])
        return np.where(
            apart, np.where(np.isfinite(self.crossing), self.crossing, 0.0), 0.0
        )

    @cached_property
    def head(self) -> FloatArray:
        """Return the least starts of copies by rank, in seconds. [n]"""
        return starts(self.copies, self.work, self.least_head, self._inside, self.apart)

    @cached_property
    def tail(self) -> FloatArray:
        """Return the least times after the finish of copies, by rank from last, in seconds. [n]"""
        args = (
            self.copies,
            self.work,
            self.least_tail,
            transpose_relation(self._inside),
            self.apart,
        )
        return starts(*args, reverse=True)

    @cached_property
    def group(self) -> IntArray:
        """Return the group of each entry of ``head``. [n]"""
        return np.repeat(np.arange(len(self.work), dtype=np.int32), self.copies.count)

    @property
    def critical_path(self) -> float:
        """Return the seconds of the longest path by ranks."""
        return float((self.head + self.work[self.group] + self.tail_of_job).max())

    @cached_property
    def tail_of_job(self) -> FloatArray:
        """Return the tail of each entry of ``head``, that of the copy which starts k-th. [n]"""
        begin = self.copies.begin
        group = self.group
        return np.asarray(
            self.tail[begin[group] + begin[group + 1] - 1 - np.arange(len(group))]
        )

    def bounds(self) -> dict[str, float]:
        """Return the bounds by name, in seconds; without transfers but those that are forced."""
        group = self.group
        part = self.machines.part[group]
        head = self.head
        tail = self.tail_of_job
        jobs = *sort_jobs_by_unit(part, head), group
        weight, work = work_weights(self.part_columns, self.machines.counts, UPDATES)
        share = (self.columns * weight).min(axis=1)[group]
        return {
            "critical_path": self.critical_path,
            "work": float(work),
            "windows": windows(head, tail, share),
            "units": float(bound_units(*jobs, self.columns, head, tail).max()),
            "fill": fill(part, group, self.columns, weight, head, tail),
        }
