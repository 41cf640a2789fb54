"""``simulate`` and ``Simulator``: step time, memory and timeline of placements of a problem.

Simulating a step of a million ops takes a third of a second, and the same devices and order are
simulated several times: by the placer for their score, by repair for their memory, and once more to
check the answer. So ``Timelines`` caches the last ``KEPT`` simulated steps of large problems.
Devices and order are compared entry by entry, so that a cached step is exactly the one that a
simulation would give. A look-up takes O(n); a cached step takes some 50 bytes for each op and
transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.errors import DeadlockError
from gnnplace.graph import describe_cycle, first_ready_first
from gnnplace.problem import Placement, Problem, list_faults, sequence_from_order
from gnnplace.simulation.compiled import Compiled, compile_problem
from gnnplace.simulation.kernels import (
    ROUNDING,
    StepTimes,
    run_kernel,
    step_time_kernel,
    step_times_kernel,
)
from gnnplace.simulation.list_scheduling import complete
from gnnplace.simulation.memory import (
    compute_total_memory,
    device_state,
    excess_kernel,
    find_sorted_peak,
    lifetimes,
    peak_kernel,
)
from gnnplace.simulation.step_count import count_steps

Lives = tuple[IntArray, FloatArray, FloatArray, FloatArray]
LARGE = 200_000  # ops from which on timelines are kept
KEPT = 2
NO_LIVES = (np.empty(0, np.int32), np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True, eq=False)
class SimulatedTimeline:
    """One simulated step; K transfers.

    Attributes:
        compiled: the compiled problem that was simulated.
        device: device of each op. [n]
        order: the order of all ops. [n]
        step_time: seconds; inf where the placement cannot run.
        start: seconds at which each op starts; nan where it does not. [n]
        finish: seconds at which each op finishes. [n]
        transfer: tensor, source and target of each transfer. [K, 3]
        service: start and end of service and arrival of each transfer. [K, 3]
    """

    compiled: Compiled
    device: IntArray
    order: IntArray
    step_time: float
    start: FloatArray
    finish: FloatArray
    transfer: IntArray
    service: FloatArray

    @classmethod
    def of(
        cls, compiled: Compiled, device: IntArray, order: IntArray
    ) -> SimulatedTimeline:
        """Simulate a step."""
        n = len(device)
        room = len(compiled.consumer) + 1
        start = np.full(n, np.nan)
        finish = np.full(n, np.nan)
        transfer = np.empty((room, 3), np.int32)
        service = np.empty((room, 3))
        record = StepTimes(
            start=start,
            finish=finish,
            transfer=transfer,
            service=service,
        )
        _, step_time, count = run_kernel(
            compiled, device, order, np.inf, compiled.tail, record
        )
        transfers = (transfer[:count], service[:count])
        return cls(compiled, device, order, float(step_time), start, finish, *transfers)

    def lives(self, wanted: BoolArray) -> Lives:
        """Return the device, begin, end and bytes of every tensor's life on every wanted device.
        [D]
        """
        times = (self.start, self.finish, self.transfer, self.service)
        lives: Lives = lifetimes(self.compiled, self.device, *times, wanted)
        return lives

    @cached_property
    def excess(self) -> float:
        """Return the bytes above the limits, summed over devices (``excess_kernel``)."""
        memory = self.compiled.memory
        doubtful = compute_total_memory(self.compiled, self.device) > memory
        if not doubtful.any():
            return 0.0
        peak = device_state(self.compiled, self.device)
        if np.isfinite(self.step_time):
            peak = peak_kernel(*self.lives(doubtful), peak)
        return float(np.maximum(peak - memory, 0.0).sum())

    def within(self, cutoff: float) -> float:
        """Return the step time; inf above ``cutoff`` seconds."""
        if self.step_time <= cutoff * (1.0 + ROUNDING):
            return self.step_time
        return np.inf


class Timelines:
    """The last timelines of a problem; none of a small one.

    Args:
        compiled: the compiled problem that was simulated.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.kept: list[SimulatedTimeline] = []

    def get(
        self, device: IntArray, order: IntArray, cutoff: float = np.inf
    ) -> SimulatedTimeline | None:
        """Return the timeline of a placement: kept, or made and kept.

        None of a small problem, nor with a ``cutoff``, which saves more, where it is not kept.
        """
        if len(device) < LARGE:
            return None
        for timeline in self.kept:
            if np.array_equal(timeline.device, device) and np.array_equal(
                timeline.order, order
            ):
                return timeline
        if cutoff < np.inf:
            return None
        timeline = SimulatedTimeline.of(self.compiled, device.copy(), order.copy())
        self.kept = [timeline, *self.kept][:KEPT]
        return timeline


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers in the order they were queued; K of them, times in seconds.

    Attributes:
        tensor: tensor sent. [K]
        source: sending device. [K]
        target: receiving device. [K]
        start: start of service on the channel. [K]
        end: end of service. [K]
        arrival: end of service plus latency. [K]
    """

    tensor: IntArray
    source: IntArray
    target: IntArray
    start: FloatArray
    end: FloatArray
    arrival: FloatArray


@dataclass(frozen=True, eq=False)
class Simulation:
    """A predicted training step.

    Attributes:
        step_time: seconds; inf where the placement cannot run at all.
        peak_memory: bytes of each device. [D]
        faults: why the placement is infeasible, one line each; empty if it is feasible.
        start: seconds at which each op starts; nan where the placement cannot run. [n]
        finish: seconds at which each op finishes. [n]
        device: device of each op. [n]
        order: the order of all ops that the sequences come from. [n]
        lives: device, begin, end and bytes of every tensor's life; none where it cannot run.
        state: bytes of state on each device. [D]
    """

    step_time: float
    peak_memory: FloatArray
    faults: tuple[str, ...]
    start: FloatArray
    finish: FloatArray
    transfers: Transfers
    device: IntArray
    order: IntArray
    lives: tuple[IntArray, FloatArray, FloatArray, FloatArray]
    state: FloatArray

    @cached_property
    def memory_curve(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """Return, for each device, the instants in seconds and the bytes from then on."""
        return _memory_curve(self.lives, self.state)

    @property
    def feasible(self) -> bool:
        """Return whether the placement runs and fits."""
        return not self.faults

    def busy_share(self, num_devices: int) -> FloatArray:
        """Return the share of the step each device spends computing. [D]"""
        if not np.isfinite(self.step_time) or self.step_time == 0:
            return np.zeros(num_devices)
        busy = np.bincount(self.device, self.finish - self.start, num_devices)
        return np.asarray(busy / self.step_time)


class Simulator:
    """Simulates placements of one problem; compiled arrays are made once.

    Of a large problem the last timelines are kept: ``Timelines``.

    Args:
        problem: the problem; it is not changed.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.compiled = compile_problem(problem)
        self.timelines = Timelines(self.compiled)

    def step_time(
        self, device: IntArray, order: IntArray, cutoff: float = np.inf
    ) -> float:
        """Return the predicted seconds; inf if ops lack links or kinds, deadlock, or above
        ``cutoff``.
        """
        count_steps()
        device = _int32(device)
        order = _int32(order)
        timeline = self.timelines.get(device, order, cutoff)
        if timeline is not None:
            return timeline.within(cutoff)
        return float(step_time_kernel(self.compiled, device, order, cutoff))

    def step_times(self, devices: IntArray, orders: IntArray) -> FloatArray:
        """Return the predicted seconds of a batch of placements.

        Args:
            devices: device of each op. [B, n]
            orders: order of all ops of each placement, or one for all. [B, n] or [n]
        """
        count_steps(len(devices))
        rows = _int32(np.atleast_2d(orders))
        return np.asarray(step_times_kernel(self.compiled, _int32(devices), rows))

    def excess(
        self, device: IntArray, order: IntArray, cutoff: float = np.inf
    ) -> tuple[float, float]:
        """Return the predicted seconds, inf above ``cutoff``; bytes above the limits summed over
        devices.
        """
        count_steps()
        device = _int32(device)
        order = _int32(order)
        timeline = self.timelines.get(device, order, cutoff)
        if timeline is not None:
            return timeline.within(cutoff), timeline.excess
        step_time, excess = excess_kernel(self.compiled, device, order, cutoff)
        return float(step_time), float(excess)

    def complete(self, device: IntArray) -> IntArray:
        """Return an order of all ops for given devices by list scheduling. [n]"""
        return complete(self.problem, self.compiled, device)

    def find_order(self, placement: Placement) -> IntArray:
        """Return one order of all ops that agrees with the graph and the placement's sequences. [n]

        Raises:
            DeadlockError: sequences contradict the graph; names the ops of a cycle.
        """
        if placement.sequence is None:
            return self.complete(placement.device)
        return merge_sequences(self.problem, placement.sequence)

    def run(self, device: IntArray, order: IntArray) -> Simulation:
        """Predict the full step: timeline, transfers, memory, faults."""
        count_steps()
        problem = self.problem
        c = self.compiled
        device = _int32(device)
        order = _int32(order)
        reasons = list_faults(problem, device)
        run = self.timelines.get(device, order) or SimulatedTimeline.of(
            c, device, order
        )
        state = np.bincount(device, c.state, problem.num_devices).astype(np.float64)
        lives = NO_LIVES
        if np.isfinite(run.step_time):
            lives = run.lives(np.ones(len(state), np.bool_))
        # `peak_kernel`, which sorts in a kernel, takes a second to compile.
        _, begin, end, _ = lives
        by_begin = np.argsort(begin, kind="stable").astype(np.int32)
        by_end = np.argsort(end, kind="stable").astype(np.int32)
        peak = find_sorted_peak(*lives, state, by_begin, by_end)
        devices = problem.cluster.devices
        reasons += [
            f"device {devices[d].name!r} needs {peak[d]:.6g} bytes at its peak, "
            f"{peak[d] - devices[d].memory:.6g} more than its memory of {devices[d].memory:.6g}"
            for d in np.flatnonzero(peak > problem.cluster.memory)
        ]
        return Simulation(
            step_time=run.step_time,
            peak_memory=peak,
            faults=tuple(reasons),
            start=run.start,
            finish=run.finish,
            transfers=Transfers(*run.transfer.T, *run.service.T),
            device=device,
            order=order,
            lives=lives,
            state=state,
        )


def simulate(problem: Problem, placement: Placement) -> Simulation:
    """Predict one training step of ``placement``.

    Raises:
        DeadlockError: sequences contradict the graph; names the ops of a cycle.
    """
    simulator = Simulator(problem)
    return simulator.run(placement.device, simulator.find_order(placement))


def merge_sequences(problem: Problem, sequence: tuple[IntArray, ...]) -> IntArray:
    """Return one order of all ops that every sequence and every edge of the graph agree with. [n]

    Raises:
        DeadlockError: there is none; names the ops of a cycle.
    """
    source, target, _ = problem.graph.edges
    first = np.concatenate([source, *(ops[:-1] for ops in sequence)])
    second = np.concatenate([target, *(ops[1:] for ops in sequence)])
    n = problem.num_ops
    by_source = np.argsort(first, kind="stable")
    offset = np.concatenate(([0], np.cumsum(np.bincount(first, minlength=n)))).astype(
        np.int32
    )
    order = np.asarray(first_ready_first(offset, _int32(second[by_source])))
    if len(order) < problem.num_ops:
        cycle = describe_cycle(first.tolist(), second.tolist(), problem.graph.names)
        raise DeadlockError(
            f"sequence: deadlock, the sequences contradict the graph: {cycle}"
        )
    return order


def finish_placement(
    problem: Problem, device: IntArray, order: IntArray, **about: object
) -> Placement:
    """Return a placement with the sequences of ``order``; ``about`` sets its other attributes."""
    sequence = sequence_from_order(_int32(device), _int32(order), problem.num_devices)
    return Placement(_int32(device), sequence, **about)  # type: ignore[arg-type]


def _int32(array: IntArray) -> IntArray:
    return np.ascontiguousarray(array, dtype=np.int32)


def _memory_curve(
    lives: tuple[IntArray, FloatArray, FloatArray, FloatArray], state: FloatArray
) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """Return the bytes alive on each device over time: instants and the bytes from each
    instant on.
    """
    location, begin, end, size = lives
    curves = []
    for d in range(len(state)):
        on_device = (location == d) & (end > begin)
        instants = np.concatenate((begin[on_device], end[on_device]))
        change = np.concatenate((size[on_device], -size[on_device]))
        times, index = np.unique(np.concatenate(([0.0], instants)), return_inverse=True)
        total = np.bincount(index, np.concatenate(([state[d]], change)), len(times))
        curves.append((times, total.cumsum()))
    return tuple(curves)
