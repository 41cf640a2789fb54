"""``SearchSpace``: what placers share about one problem.

It has the placement units (colocation classes) with their costs, and a **coordinate** for every op,
by which chunks of a training graph keep a layer's backward ops with its forward ops. The coordinate
of a forward op is its topological position. A backward or update op takes the largest coordinate of
its forward inputs (the activations that it differentiates), or, without any, the smallest of its
other inputs (gradients flow from late layers to early ones). A unit's coordinate is the mean of
those of its forward ops.

``Found`` is the result of a search: devices and an order of ops.

Deadlines: a deadline is the value of `read_clock` at which a search must return. ``NO_BUDGET``
stands for budget 0: one whole construction, or a fixed number of steps, however long that takes.

A search uses its deadline only to stop. What it does next depends on the seed and on its results so
far. So a larger budget continues where a smaller one was cut off, and is never worse. Tests check
this without a stopwatch: under `count_looks`, `read_clock` counts its calls instead of seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import InfeasibleError
from gnnplace.graph import (
    average_finite,
    flows_between,
    follow_forward,
    sum_finite,
    sum_op_flows,
)
from gnnplace.problem import FORWARD, Problem
from gnnplace.simulation import (
    ROUNDING,
    Compiled,
    Simulator,
    list_priorities,
    list_schedule,
    make_lean,
    mean_upward_rank,
    reverse_problem,
    steps_so_far,
    turn_order,
)

NO_BUDGET = 0.0
LARGE = 200_000  # ops whose list schedules take a noticeable share of a second
# The number of ops from which a problem that is tight in memory is placed in groups.
LEAST_TIGHT = 1_000
_counts: list[Iterator[int]] = []


def read_clock() -> float:
    """Return the seconds of ``time.perf_counter()``; within `count_looks` how often it was asked.

    Within ``simulation.step_count.count_budget_steps``, the number of simulated steps.
    """
    if _counts:
        return float(next(_counts[-1]))
    steps = steps_so_far()
    if steps is None:
        return time.perf_counter()
    return steps


@contextmanager
def count_looks() -> Iterator[None]:
    """Make a budget so many looks at the clock within it, the same on every machine."""
    _counts.append(count(1))
    try:
        yield
    finally:
        _counts.pop()


def is_expired(deadline: float) -> bool:
    """Return whether a budget is used up; never so without a budget."""
    return NO_BUDGET < deadline <= read_clock()


class SearchSpace:
    """One problem with its simulator and everything that placers derive from it.

    Args:
        problem: the problem; it is not changed.

    Attributes:
        starts: placements that are known before a search; no answer is worse than one of them.
    """

    starts: tuple[Found, ...] = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.simulator = Simulator(problem)
        self.compiled = self.simulator.compiled

    def check_possible(self) -> None:
        """Check that every unit has a device that its kind, pins, classmates and memory allow.

        Raises:
            InfeasibleError: naming the op and what is in the way.
        """
        problem = self.problem
        stuck = np.flatnonzero(~problem.unit_allowed.any(axis=1))
        if stuck.size:
            op = problem.graph.names[int(np.argmax(problem.unit_of == stuck[0]))]
            raise InfeasibleError(
                f"op {op!r}: no device can run it together with its colocation class and pins; "
                "give it a time for a device kind of the cluster or loosen pin or colocate"
            )
        if self.memory_matters:
            self._check_memory()

    def _check_memory(self) -> None:
        """Check that every op that takes time fits a device that may run it, all else away."""
        problem = self.problem
        need = self.working_set
        memory = self.compiled.memory
        large = np.flatnonzero(need > memory.min() * (1 + ROUNDING))
        fits = need[large, None] <= memory * (1 + ROUNDING)
        times = problem.times[large]
        has_device = (fits & np.isfinite(times)) | (times <= 0)
        stuck = large[~has_device.any(axis=1)]
        if stuck.size:
            op = int(stuck[need[stuck].argmax()])
            raise InfeasibleError(
                f"op {problem.graph.names[op]!r}: its state, inputs and outputs are {need[op]:.6g} "
                f"bytes at once, and no device that may run it has as many (the largest memory is "
                f"{memory.max():.6g}); take devices with more memory, a smaller batch or more "
                "micro-batches"
            )

    @cached_property
    def working_set(self) -> FloatArray:
        """Return the bytes on an op's device while it runs: unit state, inputs, outputs. [n]"""
        problem = self.problem
        graph = self.problem.graph
        need = problem.unit_state[problem.unit_of]
        need += np.bincount(graph.producer, graph.size, problem.num_ops)
        taken = graph.size[graph.consumption_tensor]
        return need + np.bincount(graph.consumer, taken, problem.num_ops)

    @cached_property
    def work(self) -> FloatArray:
        """Return the seconds of each unit on each device; inf where it is not allowed. [U, D]"""
        problem = self.problem
        kinds = np.stack(
            [np.bincount(problem.unit_of, times) for times in problem.kind_times.T],
            axis=1,
        )
        work = kinds.astype(np.float64).take(problem.kind_of, axis=1)
        work[~problem.unit_allowed] = np.inf
        return work

    @cached_property
    def mean_work(self) -> FloatArray:
        """Mean seconds of each unit over the devices that may have it. [U]"""
        return np.asarray(average_finite(self.work))

    @cached_property
    def speed(self) -> FloatArray:
        """Return the relative speed of each device on the units it may have; 0 if none. [D]"""
        allowed = self.problem.unit_allowed
        device_work = sum_finite(self.work)
        mean = self.mean_work @ allowed
        idle = allowed.any(axis=0).astype(np.float64)
        return np.where(device_work > 0, mean / np.maximum(device_work, 1e-300), idle)

    @cached_property
    def coordinate(self) -> FloatArray:
        """Return the coordinate of each op, as the module's docstring defines it. [n]"""
        graph = self.problem.graph
        forward = self.problem.phase == FORWARD
        inputs = (graph.predecessor_offset, graph.predecessor)
        place = graph.position.astype(np.float64)
        return np.asarray(
            follow_forward(graph.topological_order, *inputs, forward, place)
        )

    @cached_property
    def unit_coordinate(self) -> FloatArray:
        """Mean coordinate of each unit's forward ops, or of all its ops if it has none. [U]"""
        return unit_mean(self.problem, self.coordinate)

    @cached_property
    def unit_order(self) -> IntArray:
        """Return the units by coordinate. [U]"""
        return np.argsort(self.unit_coordinate, kind="stable").astype(np.int32)

    @cached_property
    def unit_flows(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return the bytes between units.

        As offset, neighbours, bytes in and bytes out: [U + 1], [E], [E], [E].

        -1 bytes where no tensor goes that way.
        """
        problem = self.problem
        source, target, size = problem.graph.edges
        if problem.num_units == problem.num_ops:
            return sum_op_flows(source, target, size, problem.num_ops)
        unit = problem.unit_of
        return flows_between(unit[source], unit[target], size, problem.num_units)

    @cached_property
    def unit_edges(self) -> tuple[IntArray, IntArray]:
        """Return the neighbours of units in the graph as a symmetric CSR. [U + 1], [2 E]"""
        return self.unit_flows[:2]

    @cached_property
    def unit_ops(self) -> tuple[IntArray, IntArray]:
        """Return the ops of each unit as a CSR. [U + 1], [n]"""
        counts = np.bincount(self.problem.unit_of, minlength=self.problem.num_units)
        offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return offset, np.argsort(self.problem.unit_of, kind="stable").astype(np.int32)

    @cached_property
    def all_bytes(self) -> float:
        """Return the most bytes that a placement can take on a device: those of all ops."""
        compiled = self.compiled
        tensors = compiled.size[compiled.op_tensor]
        return float(compiled.state.sum() + tensors.sum())

    @cached_property
    def memory_matters(self) -> bool:
        """Return whether some placement could exceed a device's memory."""
        return bool(self.all_bytes > self.problem.cluster.memory.min())

    @cached_property
    def penalty(self) -> float:
        """Return the seconds that are added to a score if all of the cluster's memory is exceeded.

        Memory of a device that has more than all ops take counts as what they take: bytes beyond
        that of a CPU without a limit would leave nothing of the penalty.
        """
        times = np.where(
            np.isfinite(self.problem.kind_times), self.problem.kind_times, 0.0
        )
        slowest = 100.0 * float(times.max(axis=1).sum() + 1e-9)
        memory = self.problem.cluster.memory
        if not self.memory_matters or memory.max() <= self.all_bytes:
            return slowest
        usable = np.minimum(memory, self.all_bytes)
        return slowest * max(1.0, float(memory.sum())) / max(1.0, float(usable.sum()))

    @cached_property
    def priorities(self) -> list[FloatArray]:
        """Return the priorities of list scheduling (see ``simulation.list_scheduling``)."""
        return list_priorities(self.problem)

    @cached_property
    def turn_order(self) -> IntArray:
        """Return the ops by (phase, micro-batch, topological position). [n]"""
        return turn_order(self.problem)

    def spread(self, unit_device: IntArray) -> IntArray:
        """Return the device of each op from the device of each unit. [n]"""
        return np.asarray(unit_device)[self.problem.unit_of].astype(np.int32)

    def find_unit_devices(self, device: IntArray) -> IntArray:
        """Return the device of each unit from the device of each op. [U]"""
        offset, ops = self.unit_ops
        return device[ops[offset[:-1]]]

    def allow(self, unit_device: IntArray) -> IntArray:
        """Return the same devices, but units that may not be there go where they take least time.
        [U]
        """
        unit_device = np.array(unit_device, dtype=np.int32)
        wrong = ~self.problem.unit_allowed[np.arange(len(unit_device)), unit_device]
        unit_device[wrong] = self.work[wrong].argmin(axis=1)
        return unit_device

    @cached_property
    def reversed(self) -> Compiled:
        """Return the reversed problem, for ``justify``."""
        return reverse_problem(self.compiled)

    @cached_property
    def lean(self) -> tuple[Compiled, Compiled]:
        """Return the problem and the reversed problem without implied edges, for list schedules."""
        lean_problem = make_lean(self.problem, self.compiled)
        return lean_problem, reverse_problem(lean_problem)

    def fits(self, device: IntArray, order: IntArray) -> bool:
        """Return whether a placement is within all memory."""
        return not self.memory_matters or self.simulator.excess(device, order)[1] == 0

    def score(self, device: IntArray, order: IntArray, cutoff: float = np.inf) -> float:
        """Return the predicted seconds, plus a penalty for memory above the limits; inf above
        ``cutoff``.
        """
        if not self.memory_matters:
            return self.simulator.step_time(device, order, cutoff)
        seconds, excess = self.simulator.excess(device, order, cutoff)
        return seconds + self.penalty * excess / max(
            1.0, float(self.compiled.memory.sum())
        )

    def sequence(
        self, device: IntArray, extra: Sequence[FloatArray] = (), cutoff: float = np.inf
    ) -> tuple[float, IntArray]:
        """Return the score and the best order found for given devices; inf where none is worth a
        look.

        List scheduling by every known priority and those in ``extra``, and turns, until the step
        takes no longer than the work of one device.

        Args:
            device: device of each op. [n]
            extra: more priorities. Each [n].
            cutoff: score above which the caller does not want to know.
        """
        best = np.inf
        best_order = self.turn_order
        times = self.compiled.times[np.arange(len(device)), device]
        busiest = float(np.bincount(device, times).max())
        if busiest > cutoff * (1.0 + ROUNDING):
            return best, best_order
        for priority in (*extra, *self.priorities, None):
            order = self.turn_order
            if priority is not None:
                order = list_schedule(self.compiled, device, priority)
            score = self.score(device, order, min(best, cutoff))
            if score < best:
                best = score
                best_order = order
            if best <= busiest * (1.0 + ROUNDING):
                break
        return best, best_order


@dataclass(frozen=True)
class Found:
    """A placement as a search hands it back; it may not fit in memory yet.

    Attributes:
        device: device of each op. [n]
        order: all ops; a device runs its ops in this order. [n]
        note: a remark in a few words.
        bound: seconds that the search proved no placement to be below, if it proves anything.
    """

    device: IntArray
    order: IntArray
    note: str = ""
    bound: float = 0.0


def choose_better(space: SearchSpace, first: Found, second: Found) -> Found:
    """Return the one of less score; the first among equals."""
    return min(first, second, key=lambda found: space.score(found.device, found.order))


def rank_order(space: SearchSpace) -> IntArray:
    """Return the ops by descending upward rank; topological position breaks ties. [n]"""
    rank = mean_upward_rank(space.problem)
    return np.lexsort((space.problem.graph.position, -rank)).astype(np.int32)


def with_own_order(
    space: SearchSpace, device: IntArray, start: FloatArray, deadline: float = NO_BUDGET
) -> Found:
    """Return the devices with the better of the scheduler's own order and list-scheduled ones.

    Of a large problem its own alone after the deadline.
    """
    scheduled_order = np.lexsort((space.problem.graph.position, start)).astype(np.int32)
    if space.problem.num_ops > LARGE and is_expired(deadline):
        return Found(device, scheduled_order)
    score, order = space.sequence(device)
    return Found(
        device,
        scheduled_order if space.score(device, scheduled_order) < score else order,
    )


def unit_mean(problem: Problem, coordinate: FloatArray) -> FloatArray:
    """Return the mean coordinate of each unit's forward ops, or of all its ops if it has
    none. [U]
    """
    forward = (problem.phase == FORWARD).astype(np.float64)
    has_forward = np.bincount(problem.unit_of, forward, problem.num_units) > 0
    weight = np.where(has_forward[problem.unit_of], forward, 1.0)
    total = np.bincount(problem.unit_of, weight * coordinate, problem.num_units)
    return np.asarray(total / np.bincount(problem.unit_of, weight, problem.num_units))
