"""What a run gives back: step times by both clocks, a timeline, and the first step's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import torch

from gnnplace.execution.step_table import step_table


@dataclass(frozen=True)
class OpTiming:
    """When a problem op ran, in seconds since the step's start.

    Attributes:
        op: Name of the problem op.
        device: Name of its device.
        start: After its inputs were there.
        finish: Before its tensors are sent.
        busy: What it computed in between by its worker's own clock; less than that if others had
            the core. None if that is not known.
    """

    op: str
    device: str
    start: float
    finish: float
    busy: float | None = None


@dataclass(frozen=True)
class TransferTiming:
    """When a tensor travelled, in seconds since the step's start.

    Attributes:
        value: Name of the value.
        producer: Name of the problem op that made it.
        source: Name of the device it left.
        target: Name of the device it went to.
        bytes: The bytes of the value.
        start: When it was taken up.
        finish: When it was there.
    """

    value: str
    producer: str
    source: str
    target: str
    bytes: float
    start: float
    finish: float


@dataclass(frozen=True)
class StepTiming:
    """One step by the clocks.

    Attributes:
        wall: Seconds from the first device's start to the last one's finish.
        virtual: The same by the virtual clock, which other processes cannot slow down.
        interrupted: A worker was moved off its core in between, so that `wall` is too long.
        ops: In the order of devices, then of time.
        transfers: In the order of the plan.
    """

    wall: float
    virtual: float
    interrupted: bool
    ops: tuple[OpTiming, ...] = ()
    transfers: tuple[TransferTiming, ...] = ()

    def __str__(self) -> str:
        """A table: both clocks, what each device did, the longest ops."""
        return step_table(self)


@dataclass(frozen=True)
class StepValues:
    """The numbers of one step.

    Attributes:
        loss: The loss of the step; the mean over micro-batches; None forward-only.
        gradients: By parameter name, averaged over micro-batches.
        parameters: By parameter name, after the update.
        buffers: By buffer name, after the step.
        optimizer: By "parameter:state", after the update.
        outputs: By value name, of a forward-only program.
    """

    loss: float | None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerMemory:
    """Bytes of one worker; see `gnnplace.runtime.memory`.

    Attributes:
        process: Resident before it made any tensor; None where the kernel does not say.
        messages: Buffers that are kept for messages.
        state: Parameters, buffers, the optimizer's state, the batch.
        step: What a step takes at most beside the state.
        grown: What the process grew by at most in all steps; None where the kernel does not say.
    """

    process: float | None
    messages: float
    state: float
    step: float
    grown: float | None

    @property
    def peak(self) -> float:
        """State and step: what a placement's memory means."""
        return self.state + self.step


@dataclass(frozen=True, eq=False)
class Execution:
    """A run of several steps.

    Attributes:
        mode: "measured" (wall clock, a core for each worker) or "emulated" (virtual clock).
        transport: How tensors travelled.
        devices: Names of the devices that worked.
        steps: Clocks of every step after the warm-up.
        first: Numbers of the first step, None if they were not asked for.
        memory: What each worker's memory was taken by, by device name.
        played: Kinds of devices whose work the CPU did, being emulated.
    """

    mode: str
    transport: str
    devices: tuple[str, ...]
    steps: tuple[StepTiming, ...]
    first: StepValues | None
    memory: dict[str, WorkerMemory] = field(default_factory=dict)
    played: tuple[str, ...] = ()

    @property
    def peak_memory(self) -> dict[str, float]:
        """Bytes of each device in a step, by name: what the simulator predicts."""
        return {name: memory.peak for name, memory in self.memory.items()}

    @property
    def caveat(self) -> str:
        """Why its seconds must not be compared with the prediction; empty where they may."""
        if not self.played:
            return ""
        kinds = " and ".join(self.played)
        return (
            f"the CPU of this machine played the devices of kind {kinds}: the seconds of this run "
            "are CPU seconds, which say nothing about the prediction; what it computed counts"
        )

    @cached_property
    def step_time(self) -> float:
        """Seconds of a step: the median, of the wall clock if measured, else of the virtual one.

        Steps without an involuntary context switch alone count, as long as there is one.
        """
        return self.virtual_step_time if self.mode == "emulated" else self.wall_step_time

    @cached_property
    def wall_step_time(self) -> float:
        """Median seconds by the wall clock, of undisturbed steps if there are any."""
        return median(step.wall for step in self._undisturbed)

    @cached_property
    def virtual_step_time(self) -> float:
        """Median seconds by the virtual clock, of all steps."""
        return median(step.virtual for step in self.steps)

    @cached_property
    def fastest_wall(self) -> float:
        """Wall-clock seconds of the shortest step; see `gnnplace.measurements.records.fastest`."""
        return min(step.wall for step in self.steps)

    @cached_property
    def fastest_virtual(self) -> float:
        """Virtual seconds of the shortest step."""
        return min(step.virtual for step in self.steps)

    @cached_property
    def fastest(self) -> float:
        """Seconds of the shortest step by the clock of the mode."""
        return self.fastest_virtual if self.mode == "emulated" else self.fastest_wall

    @cached_property
    def num_interrupted(self) -> int:
        """Steps with an involuntary context switch."""
        return sum(step.interrupted for step in self.steps)

    @cached_property
    def timeline(self) -> StepTiming:
        """The step whose time is nearest to `step_time`, with its ops and transfers."""
        clock = "virtual" if self.mode == "emulated" else "wall"
        steps = self.steps if self.mode == "emulated" else self._undisturbed
        return min(steps, key=lambda step: abs(getattr(step, clock) - self.step_time))

    @property
    def _undisturbed(self) -> tuple[StepTiming, ...]:
        return tuple(s for s in self.steps if not s.interrupted) or self.steps
