"""Step times and timelines from the workers' ticks, by the wall clock and by a virtual clock.

The virtual clock uses each worker's own CPU time, which other processes cannot extend. For measured
runs it replays the step with the CPU times of ops and copies; a message arrives one latency after
its copy. For emulated runs it simulates the step with the CPU times of the ops and the links of the
problem.

`StepStream` passes steps on during a run, so that they are kept even if the run fails later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.problem import Placement
from gnnplace.run.placed.plan import ExecutionPlan
from gnnplace.run.placed.result import OpTiming, StepTiming, TransferTiming
from gnnplace.run.placed.source import DeviceProgram
from gnnplace.run.placed.worker import Records
from gnnplace.run.workers import DONE
from gnnplace.simulation import Transfers, simulate

if TYPE_CHECKING:
    from gnnplace.run.placed.setting import RunSetting

WALL = 0
CPU = 1
NANO = 1e-9
Observer = Callable[[int, Sequence[StepTiming]], None]
"""`observer(first, timings)`: steps `first`, `first + 1`, … after the warm-up are complete."""
EVERY = 2.0
"""Seconds between two hand-overs: whoever works on the steps takes a core from a worker."""


@dataclass(frozen=True)
class StepClock:
    """The ticks of one step, of all workers.

    Attributes:
        plan: The plan that was run.
        programs: The programs of every worker; say which tick is which.
        records: The records of every worker.
        step: The number of the step.
    """

    plan: ExecutionPlan
    programs: Sequence[DeviceProgram]
    records: Sequence[Records]
    step: int

    def seconds(self, worker: int, tick: int, clock: int) -> float:
        """Return the seconds of a tick by the wall clock or the worker's CPU time."""
        return self.records[worker].tick(self.step, tick, clock) * NANO

    def interrupted(self) -> bool:
        """Return whether any worker was moved off its core during the step."""
        return any(record.switches(self.step) for record in self.records)

    def op_seconds(self) -> np.ndarray:
        """Return the CPU seconds of every problem op. [num_ops]"""
        seconds = np.zeros(self.plan.problem.num_ops)
        for w, device in enumerate(self.plan.devices):
            ticks = self.programs[w].segment_ticks
            for segment, (start, finish, _) in zip(
                self.plan.segments[device], ticks, strict=True
            ):
                seconds[segment.op] = self.seconds(w, finish, CPU) - self.seconds(
                    w, start, CPU
                )
        return seconds


def step_timing(clock: StepClock, mode: str, placement: Placement) -> StepTiming:
    """Return a step by the clocks of a mode.

    Args:
        clock: The ticks of the step.
        mode: "measured" or "emulated".
        placement: The placement that runs, with its sequences.
    """
    if mode == "emulated":
        return emulate_step(clock, placement)
    return make_measured_step(clock)


def make_measured_step(clock: StepClock) -> StepTiming:
    """Return a step by the wall clock, with the virtual one beside it."""
    plan = clock.plan
    devices = clock.plan.problem.cluster.devices
    origin = math.inf
    end = -math.inf
    for w in range(len(plan.devices)):
        origin = min(origin, clock.seconds(w, 0, WALL))
    ops: list[OpTiming] = []
    transfers: dict[int, TransferTiming] = {}
    for w, device in enumerate(plan.devices):
        program = clock.programs[w]
        for segment, (first, last, _) in zip(
            plan.segments[device], program.segment_ticks, strict=True
        ):
            start = clock.seconds(w, first, WALL) - origin
            finish = clock.seconds(w, last, WALL) - origin
            end = max(end, finish)
            name = plan.problem.graph.names[segment.op]
            busy = clock.seconds(w, last, CPU) - clock.seconds(w, first, CPU)
            ops.append(OpTiming(name, devices[device].name, start, finish, busy))
        for message, (first, last) in program.send_ticks.items():
            start = clock.seconds(w, first, WALL) - origin
            finish = clock.seconds(w, last, WALL) - origin
            transfer = plan.transfers[message]
            transfers[message] = TransferTiming(
                value=transfer.value,
                producer=plan.problem.graph.names[transfer.producer],
                source=devices[transfer.source].name,
                target=devices[transfer.target].name,
                bytes=transfer.bytes,
                start=start,
                finish=finish,
            )
    return StepTiming(
        wall=end,
        virtual=virtual_step_time(clock),
        interrupted=clock.interrupted(),
        ops=tuple(ops),
        transfers=tuple(dict(sorted(transfers.items())).values()),
    )


def virtual_step_time(clock: StepClock) -> float:
    """Return the seconds of a measured step if every worker had had its core to itself."""
    plan = clock.plan
    clocks = [0.0] * len(plan.devices)
    ends = [0.0] * len(plan.devices)
    arrival: dict[int, float] = {}
    position = [0] * len(plan.devices)
    while any(
        p < len(plan.segments[d]) for p, d in zip(position, plan.devices, strict=True)
    ):
        for w, device in enumerate(plan.devices):
            segments = plan.segments[device]
            while position[w] < len(segments):
                segment = segments[position[w]]
                if not arrival.keys() >= set(segment.receives):
                    break
                arrivals = [arrival[message] for message in segment.receives]
                start, finish, _ = clock.programs[w].segment_ticks[position[w]]
                spent = clock.seconds(w, finish, CPU) - clock.seconds(w, start, CPU)
                clocks[w] = ends[w] = max(clocks[w], *arrivals, 0.0) + spent
                for message in segment.sends:
                    first, end = clock.programs[w].send_ticks[message]
                    clocks[w] += clock.seconds(w, end, CPU) - clock.seconds(
                        w, first, CPU
                    )
                    arrival[message] = clocks[w] + _latency(plan, message)
                position[w] += 1
    return max(ends)


def _latency(plan: ExecutionPlan, message: int) -> float:
    transfer = plan.transfers[message]
    return float(plan.problem.cluster.latency[transfer.source, transfer.target])


def emulate_step(clock: StepClock, placement: Placement) -> StepTiming:
    """Simulate a step with the CPU times that its ops took."""
    plan = clock.plan
    problem = clock.plan.problem
    seconds = clock.op_seconds()
    timed = replace(problem, time={kind: seconds for kind in problem.cluster.kinds})
    result = simulate(timed, placement)
    names = [device.name for device in problem.cluster.devices]
    order = sorted(
        range(problem.num_ops), key=lambda i: (placement.device[i], result.start[i])
    )
    ops = tuple(
        OpTiming(
            problem.graph.names[i],
            names[placement.device[i]],
            float(result.start[i]),
            float(result.finish[i]),
        )
        for i in order
    )
    return StepTiming(
        wall=make_measured_step(clock).wall,
        virtual=result.step_time,
        interrupted=clock.interrupted(),
        ops=ops,
        transfers=_simulate_transfers(plan, result.transfers),
    )


def _simulate_transfers(
    plan: ExecutionPlan, transfers: Transfers
) -> tuple[TransferTiming, ...]:
    graph = plan.problem.graph
    names = [device.name for device in plan.problem.cluster.devices]
    return tuple(
        TransferTiming(
            value=graph.names[graph.producer[tensor]],
            producer=graph.names[graph.producer[tensor]],
            source=names[source],
            target=names[target],
            bytes=float(graph.size[tensor]),
            start=float(start),
            finish=float(arrival),
        )
        for tensor, source, target, start, arrival in zip(
            transfers.tensor,
            transfers.source,
            transfers.target,
            transfers.start,
            transfers.arrival,
            strict=True,
        )
    )


class StepStream:
    """The steps of a run after its warm-up, in order, as soon as every worker has done them.

    Args:
        setting: What the workers share: plan, programs, clocks, and the board where they say which
            steps they have done.
        placement: The placement that runs, with its sequences.
        warmup: Steps that are left out.
        observer: Handed the steps; None if nobody wants them before the end.
    """

    def __init__(
        self,
        setting: RunSetting,
        placement: Placement,
        warmup: int,
        observer: Observer | None,
    ) -> None:
        self.timings: list[StepTiming] = []
        self._setting = setting
        self._placement = placement
        self._warmup = warmup
        self._observer = observer
        self._last = time.monotonic()

    def now_and_then(self) -> None:
        """Hand over what is complete, at most once in `EVERY` seconds, if there is an observer."""
        if self._observer is not None and time.monotonic() - self._last > EVERY:
            self.flush()

    def flush(self) -> None:
        """Hand over what is complete."""
        first = len(self.timings)
        setting = self._setting
        board = setting.board
        num_done = min(board.get(w, DONE) for w in range(board.num_workers))
        for step in range(self._warmup + first, num_done):
            clock = StepClock(setting.plan, setting.programs, setting.records, step)
            self.timings.append(step_timing(clock, setting.mode, self._placement))
        if self._observer is not None and len(self.timings) > first:
            self._observer(first, self.timings[first:])
        self._last = time.monotonic()
