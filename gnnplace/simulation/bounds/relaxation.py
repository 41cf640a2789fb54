"""One relaxation of a problem: parts on one device each, and all that follows for its step time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph.ranks import downward_rank
from gnnplace.problem import Problem
from gnnplace.simulation.bounds.ancestors import ancestors, turned
from gnnplace.simulation.bounds.copies import Copies, by_rank, copies_of, starts
from gnnplace.simulation.bounds.fill import by_unit, fill
from gnnplace.simulation.bounds.machines import Machines, machines_of
from gnnplace.simulation.bounds.one_machine import on_one_machine
from gnnplace.simulation.bounds.windows import windows
from gnnplace.simulation.bounds.work import UPDATES, work_weights
from gnnplace.simulation.compiled import least_times, tails
from gnnplace.simulation.transfer import least_seconds


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Copies of ops, on parts that are on one device each.

    Attributes:
        copies: the ops by groups of copies.
        machines: their parts, and the devices that are left to them.
        crossing: least seconds of a transfer along each edge. [E]
        service: least seconds that it holds its link. [E]
        least_head: heads that are known already, by rank. [n]
        least_tail: tails, likewise. [n]
    """

    copies: Copies
    machines: Machines
    crossing: FloatArray
    service: FloatArray
    least_head: FloatArray
    least_tail: FloatArray

    @classmethod
    def of(cls, problem: Problem) -> Relaxation:
        """The relaxation of a problem as it is."""
        copies, graph = copies_of(problem), problem.graph
        head = downward_rank(graph, least_times(problem), np.zeros(len(graph.successor)))
        crossing, service = least_seconds(problem.cluster, copies.size)
        known = by_rank(copies, head), by_rank(copies, tails(problem))
        return cls(copies, machines_of(problem, copies), crossing, service, *known)

    def with_machines(self, machines: Machines) -> Relaxation:
        """The same copies on other parts; heads and tails that were found still hold."""
        return replace(self, machines=machines, least_head=self.head, least_tail=self.tail)

    @cached_property
    def columns(self) -> FloatArray:
        """Seconds of an op of each group on devices that are alike, inf where not. [G, K]"""
        return self.machines.columns()

    @cached_property
    def work(self) -> FloatArray:
        """Least seconds of an op of each group. [G]"""
        return np.asarray(self.columns.min(axis=1))

    @cached_property
    def part_columns(self) -> FloatArray:
        """Seconds of each part. [P, K]"""
        shape = len(self.machines.state), self.columns.shape[1]
        result = np.zeros(shape)
        np.add.at(result, self.machines.part, self.columns * self.copies.count[:, None])
        return result

    @cached_property
    def _inside(self) -> tuple[IntArray, IntArray]:
        return ancestors(self.copies, self.machines.part)

    @cached_property
    def apart(self) -> FloatArray:
        """Seconds of transfers that no device left to both ends forces. [E]"""
        part = self.machines.part
        apart = self.machines.apart(part[self.copies.source], part[self.copies.target])
        return np.where(apart, np.where(np.isfinite(self.crossing), self.crossing, 0.0), 0.0)

    @cached_property
    def head(self) -> FloatArray:
        """Least starts of copies by rank, in seconds. [n]"""
        return starts(self.copies, self.work, self.least_head, self._inside, self.apart)

    @cached_property
    def tail(self) -> FloatArray:
        """Least times after the finish of copies, by rank from last, in seconds. [n]"""
        args = self.copies, self.work, self.least_tail, turned(self._inside), self.apart
        return starts(*args, reverse=True)

    @cached_property
    def group(self) -> IntArray:
        """The group of each entry of ``head``. [n]"""
        return np.repeat(np.arange(len(self.work), dtype=np.int32), self.copies.count)

    @property
    def critical_path(self) -> float:
        """Seconds of the longest path by ranks."""
        return float((self.head + self.work[self.group] + self.tail_of_job).max())

    @cached_property
    def tail_of_job(self) -> FloatArray:
        """The tail that goes with each entry of ``head``: of the copy that starts k-th. [n]"""
        begin, group = self.copies.begin, self.group
        return np.asarray(self.tail[begin[group] + begin[group + 1] - 1 - np.arange(len(group))])

    def bounds(self) -> dict[str, float]:
        """Bounds by name, in seconds; without transfers but those that are forced."""
        group = self.group
        part, head, tail = self.machines.part[group], self.head, self.tail_of_job
        jobs = *by_unit(part, head), group
        weight, work = work_weights(self.part_columns, self.machines.counts, UPDATES)
        share = (self.columns * weight).min(axis=1)[group]
        return {
            "critical_path": self.critical_path,
            "work": float(work),
            "windows": windows(head, tail, share),
            "units": float(on_one_machine(*jobs, self.columns, head, tail).max()),
            "fill": fill(part, group, self.columns, weight, head, tail),
        }
