"""One worker of a run: it makes its tensors, runs its part of every step and records the clocks.

A tick of its program stores two words, wall and CPU nanoseconds. Kernels of a GPU run
asynchronously, so there a tick records an event on the stream, and the words are filled in at the
end of the step.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gnnplace.run.placed.plan import ExecutionPlan
from gnnplace.run.placed.result import SavedValues, WorkerMemory
from gnnplace.run.placed.source import (
    FILENAME,
    SIGNAL_NAME,
    TICKS,
    DeviceProgram,
    StepFunction,
)
from gnnplace.run.workers import (
    DONE,
    SEGMENT,
    STEP,
    STRIDE,
    Board,
    PeakMemory,
    StepPeak,
    Transport,
    WorkerFailure,
    copying,
    describe,
    storage_bytes,
)
from gnnplace.tracing import on_device, set_step

MILLI_TO_NANO = 1e6


class DeviceClock:
    """Clocks of a CPU worker: wall time, and the CPU time of its only thread."""

    def begin(self) -> None:
        """Get ready for a step."""

    def finish(self, ticks: memoryview, base: int, count: int) -> None:
        """Complete the clocks of a step, whose `count` ticks begin at word `base`."""

    def functions(self) -> dict[str, Callable[[], int]]:
        """Return what a device program calls.

        `wall` is the host's monotonic clock, `cpu` the time that this thread has computed, both in
        nanoseconds.
        """
        return {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


class CudaClock(DeviceClock):
    """Events on the current stream of a GPU; both clocks are its own time."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._start = 0

    def begin(self) -> None:
        """Tie the stream's time to the host's, while the stream is idle."""
        torch.cuda.synchronize()
        self._events.clear()
        self._record()
        self._start = time.perf_counter_ns()

    def finish(self, ticks: memoryview, base: int, count: int) -> None:
        """Wait for the stream and write the times of the events as ticks."""
        torch.cuda.synchronize()
        first = self._events[0]
        for i, event in enumerate(self._events[1 : count + 1]):
            passed = self._start + int(first.elapsed_time(event) * MILLI_TO_NANO)
            ticks[base + 2 * i] = ticks[base + 2 * i + 1] = passed

    def functions(self) -> dict[str, Callable[[], int]]:
        """Return a `wall` that records an event; the words are placeholders until `finish`."""
        return {"wall": self._record, "cpu": lambda: 0}

    def _record(self) -> int:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        return 0


def device_clock(device: torch.device) -> DeviceClock:
    """Return the clock for tensors on `device`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return CudaClock()
    return DeviceClock()


@dataclass(frozen=True)
class Records:
    """Shared words where a worker notes its clocks: a row a step, two words a tick, then switches.

    Attributes:
        words: The words of all rows, one row after the other.
        num_ticks: Ticks of a step.
    """

    words: memoryview
    num_ticks: int

    @property
    def row(self) -> int:
        """Return the number of words of a step."""
        return TICKS * self.num_ticks + 1

    def tick(self, step: int, tick: int, clock: int) -> int:
        """Return nanoseconds of a tick by the wall clock (0) or this worker's CPU time (1)."""
        return self.words[step * self.row + TICKS * tick + clock]

    def switches(self, step: int) -> int:
        """Return the number of involuntary context switches during a step."""
        return self.words[step * self.row + self.row - 1]


@dataclass(frozen=True)
class DeviceWorker:
    """One worker of a run; called in its process.

    Attributes:
        number: The number of the worker.
        device: The index of its device in the problem.
        plan: What every device does.
        program: The program of this device's step.
        transport: What carries tensors to and from other workers.
        board: Where it says what it does.
        records: Where it notes its clocks.
        saved: Room for the first step's numbers; None if nobody asked.
        num_steps: Steps to run, the warm-up included.
        torch_device: Where its tensors live.
    """

    number: int
    device: int
    plan: ExecutionPlan
    program: DeviceProgram
    transport: Transport
    board: Board
    records: Records
    saved: SavedValues | None
    num_steps: int
    torch_device: torch.device

    def __call__(self) -> dict[str, Any]:
        """Run all steps and return the memory that they took, as `WorkerMemory`.

        Raises:
            WorkerFailure: an op raised; names it.
        """
        self.transport.open(self.number, self.torch_device)
        grown = PeakMemory()
        try:
            with torch.inference_mode():
                clock = device_clock(self.torch_device)
                function, tensors = self.ready(clock)
                self.run(function, tensors, clock)
                step = self._step_peak(tensors, clock)
                self._bring_home()
            self.transport.close()
        except Exception as error:
            raise WorkerFailure(f"{self._where(error)}{describe(error)}") from error
        return {
            "memory": WorkerMemory(
                process=grown.before,
                messages=self.transport.held(self.number),
                state=storage_bytes(tensors.values()),
                step=step,
                grown=grown.bytes(),
            )
        }

    def ready(self, clock: DeviceClock) -> tuple[StepFunction, dict[str, torch.Tensor]]:
        """Return the step, and by their names in the source the tensors that it begins from."""
        tensors = self._tensors()
        return self._bind(tensors, clock), tensors

    def home(self, value: str) -> torch.device:
        """Return the device on which the tensor of a program input is kept."""
        return self.plan.program.inputs[value].home(self.torch_device)

    def _tensors(self) -> dict[str, torch.Tensor]:
        initial = self.plan.program.initial
        return {
            name: initial[value].detach().to(self.home(value), copy=True)
            for value, name in self.program.inputs.items()
        }

    def _bind(
        self, tensors: dict[str, torch.Tensor], clock: DeviceClock, copied: bool = False
    ) -> StepFunction:
        at = self.number * STRIDE
        names: dict[str, Any] = {
            "seg": self.board.words[at + SEGMENT : at + SEGMENT + 1]
        }
        names |= tensors | clock.functions()
        names[SIGNAL_NAME] = torch.zeros(1, dtype=torch.uint8, device=self.torch_device)
        names["save"] = lambda name, tensor: None
        if self.saved is not None and not copied:
            names["save"] = self._save
        for key, value in self.program.constants.items():
            names[key] = on_device(value, self.torch_device)
        for k, transfer in enumerate(self.plan.transfers):
            if transfer.source == self.device:
                names[f"s{k}"] = self.transport.sender(k)
            if transfer.target == self.device:
                receive = self.transport.receiver(k)
                names[f"r{k}"] = copying(receive) if copied else receive
        return self.program.bind(names)

    def _save(self, name: str, tensor: torch.Tensor) -> None:
        if self.board.get(self.number, STEP) == 1 and self.saved is not None:
            self.saved.save(name, tensor)

    def run(
        self,
        step_function: StepFunction,
        tensors: dict[str, torch.Tensor],
        clock: DeviceClock,
    ) -> None:
        """Run all steps and note their clocks; keep the numbers of the first one."""
        for step in range(self.num_steps):
            self.board.put(self.number, STEP, step + 1)
            self.transport.barrier(self.number, step + 1)
            self.once(step + 1, step, step_function, clock, step * self.records.row)
            if step == 0 and self.saved is not None:
                self._save_state(tensors)

    def once(
        self,
        turn: int,
        step: int,
        function: StepFunction,
        clock: DeviceClock,
        base: int = 0,
    ) -> None:
        """Run the ``turn``-th step, of number ``step``; its clocks go to word ``base`` and on."""
        words = self.records.words
        row = self.records.row
        set_step(step)
        self.board.put(self.number, STEP, turn)
        switches = involuntary_switches()
        clock.begin()
        function(turn, words, base)
        clock.finish(words, base, self.records.num_ticks)
        self.transport.finish_round()
        words[base + row - 1] = involuntary_switches() - switches
        self.board.put(self.number, DONE, turn)

    def _save_state(self, tensors: dict[str, torch.Tensor]) -> None:
        holders = self.plan.holders
        for value, name in self.program.inputs.items():
            if holders[value][0] == self.device and self.saved is not None:
                self.saved.save(value, tensors[name])

    def _bring_home(self) -> None:
        """Bring what was saved to the host that reports."""
        if self.saved is None:
            return
        worker = {device: w for w, device in enumerate(self.plan.devices)}
        owners = {name: worker[d] for name, d in self.plan.owners.items()}
        saved = self.saved.tensors
        self.transport.bring_home(
            (owners[name], saved[name]) for name in sorted(saved) if name in owners
        )

    def culprit(self, error: BaseException) -> str | None:
        """Return the name of the op that raised an error; None if none did."""
        line = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILENAME:
                line = trace.tb_lineno
            trace = trace.tb_next
        if line is not None:
            return self.program.lines.get(line)
        return None

    def _where(self, error: BaseException) -> str:
        op = self.culprit(error)
        if op:
            return f"member {op!r}: "
        return ""

    def _step_peak(self, tensors: dict[str, torch.Tensor], clock: DeviceClock) -> float:
        """Return the peak bytes of one more step beside the state, which is not timed.

        Tensors that arrive are copied there, so that they are counted for as long as they live.
        """
        step_function = self._bind(tensors, clock, copied=True)
        ticks = memoryview(bytearray(8 * self.records.row)).cast("q")
        turn = self.num_steps + 1
        peak = StepPeak(self.torch_device)
        self.transport.barrier(self.number, turn)
        with peak.measured():
            clock.begin()
            step_function(turn, ticks, 0)
            clock.finish(ticks, 0, self.records.num_ticks)
            self.transport.finish_round()
        return peak.bytes


def involuntary_switches() -> int:
    """Return how often this thread was moved off its core although it had work."""
    if sys.platform == "linux":
        who = resource.RUSAGE_THREAD
    else:
        who = resource.RUSAGE_SELF
    return resource.getrusage(who).ru_nivcsw
