"""What a run gives back: step times by both clocks, a timeline, and the first step's numbers.

`SavedValues` carries the numbers of a step from the workers to the parent, through shared memory;
`step_table` shows a step as plain text (`print(step.timing())`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import torch

from gnnplace.run.workers import Arena
from gnnplace.tracing import Program, base_name, mean_gradient
from gnnplace.units import milliseconds_text

STATEFUL = ("parameter", "buffer", "optimizer")
LONGEST = 5  # ops that are listed by themselves
HEAD = (
    "device",
    "ops",
    "computing",
    "share",
    "first op",
    "last op",
    "sent",
    "received",
)


@dataclass(frozen=True)
class OpTiming:
    """When a problem op ran, in seconds since the step's start.

    Attributes:
        op: Name of the problem op.
        device: Name of its device.
        start: The time at which its inputs were there and it began.
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
        start: The time at which a worker took it up.
        finish: The time at which it had arrived.
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
        ops: The ops in the order of devices, then of time.
        transfers: The transfers in the order of the plan.
    """

    wall: float
    virtual: float
    interrupted: bool
    ops: tuple[OpTiming, ...] = ()
    transfers: tuple[TransferTiming, ...] = ()

    def __str__(self) -> str:
        """Return a table: both clocks, what each device did, the longest ops."""
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
    """Bytes of one worker; see `gnnplace.run.workers.memory`.

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
        transport: How tensors travelled, "shm" or "gloo".
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
        """Return each device's bytes in a step, by name, as the simulator predicts them."""
        return {name: memory.peak for name, memory in self.memory.items()}

    @property
    def uses_gpus(self) -> bool:
        """Return whether a worker computed on a GPU."""
        if self.mode == "measured":
            for name in self.devices:
                if name.startswith("cuda:"):
                    return True
        return False

    @property
    def caveat(self) -> str:
        """Return why measured seconds must not be compared with the prediction, or ""."""
        if not self.played:
            return ""
        kinds = " and ".join(self.played)
        return (
            f"the CPU of this machine played the devices of kind {kinds}: the seconds of this run "
            "are CPU seconds, which say nothing about the prediction; what it computed counts"
        )

    @cached_property
    def step_time(self) -> float:
        """Return the median seconds of a step: wall-clock if measured, else virtual.

        Steps without an involuntary context switch alone count, as long as there is one.
        """
        if self.mode == "emulated":
            return self.virtual_step_time
        return self.wall_step_time

    @cached_property
    def wall_step_time(self) -> float:
        """Return the median seconds by the wall clock, of undisturbed steps if there are any."""
        return median(step.wall for step in self._undisturbed)

    @cached_property
    def virtual_step_time(self) -> float:
        """Return the median seconds by the virtual clock, of all steps."""
        return median(step.virtual for step in self.steps)

    @cached_property
    def fastest_wall(self) -> float:
        """Return the wall-clock seconds of the shortest step (`measurements.records.fastest`)."""
        return min(step.wall for step in self.steps)

    @cached_property
    def fastest_virtual(self) -> float:
        """Return the virtual seconds of the shortest step."""
        return min(step.virtual for step in self.steps)

    @cached_property
    def fastest(self) -> float:
        """Return the seconds of the shortest step by the clock of the mode."""
        if self.mode == "emulated":
            return self.fastest_virtual
        return self.fastest_wall

    @cached_property
    def num_interrupted(self) -> int:
        """Return the number of steps with an involuntary context switch."""
        return sum(step.interrupted for step in self.steps)

    @cached_property
    def timeline(self) -> StepTiming:
        """Return the step whose time is nearest to `step_time`, with ops and transfers."""
        clock = "virtual" if self.mode == "emulated" else "wall"
        if self.mode == "emulated":
            steps = self.steps
        else:
            steps = self._undisturbed
        return min(steps, key=lambda step: abs(getattr(step, clock) - self.step_time))

    @property
    def _undisturbed(self) -> tuple[StepTiming, ...]:
        return tuple(s for s in self.steps if not s.interrupted) or self.steps


def copies(program: Program, value: str) -> list[str]:
    """Return the names of a value in all micro-batches (its own, as captured)."""
    if program.microbatches == 1:
        return [value]
    return [f"{base_name(value)}#{k}" for k in range(program.microbatches)]


def list_computed_values(program: Program) -> tuple[str, ...]:
    """Return the values made by ops whose numbers a run reports: losses, gradients, outputs."""
    names = [*program.losses, *program.outputs]
    for value in program.gradients.values():
        names += copies(program, value)
    return tuple(dict.fromkeys(name for name in names if name not in program.inputs))


def state_values(program: Program) -> tuple[str, ...]:
    """Return the inputs whose numbers a run reports: parameters, buffers, optimizer state."""
    return tuple(
        name for name, value in program.inputs.items() if value.kind in STATEFUL
    )


class SavedValues:
    """Room for the numbers of one step, shared with the workers that fill it.

    Args:
        program: The program whose numbers are kept.
        names: The values that are kept. Make it before forking.

    Attributes:
        tensors: By value name, in shared memory.
    """

    def __init__(self, program: Program, names: Iterable[str]) -> None:
        self._program = program
        arena = Arena()
        infos = {name: program.values[name] for name in names}
        offsets = {name: arena.reserve(info.bytes) for name, info in infos.items()}
        self.tensors = {
            name: arena.view(offsets[name], info.shape, None, info.dtype)
            for name, info in infos.items()
        }

    def save(self, name: str, tensor: torch.Tensor) -> None:
        """Save the numbers of a value, if it is one of `names`."""
        if name in self.tensors:
            self.tensors[name].copy_(tensor)

    def loss(self) -> float:
        """Return the mean of the losses of all micro-batches."""
        losses = [float(self.tensors[name]) for name in self._program.losses]
        return sum(losses) / len(losses)

    def values(self) -> StepValues:
        """Return what was saved, by the names of the model."""
        program = self._program
        saved = self.tensors
        states: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in STATEFUL}
        for name in state_values(program):
            states[program.inputs[name].kind][program.inputs[name].source] = saved[name]
        gradients = {
            parameter: mean_gradient(
                [self._one(name) for name in copies(program, value)]
            )
            for parameter, value in program.gradients.items()
        }
        return StepValues(
            loss=self.loss() if program.losses else None,
            gradients=gradients,
            parameters=states["parameter"],
            buffers=states["buffer"],
            optimizer=states["optimizer"],
            outputs={name: self._one(name) for name in program.outputs},
        )

    def _one(self, name: str) -> torch.Tensor:
        if name in self.tensors:
            return self.tensors[name]
        return self._program.initial[name]


def step_table(step: StepTiming) -> str:
    """Return a step by both clocks, a row for each device, and the longest ops."""
    devices = list(dict.fromkeys(op.device for op in step.ops))
    note = (
        "; a worker was moved off its core: the wall clock is too long"
        * step.interrupted
    )
    lines = [
        f"step: {_milliseconds(step.wall)} wall, {_milliseconds(step.virtual)} virtual{note}"
    ]
    if devices:
        lines += align_columns([HEAD, *(_row(step, device) for device in devices)])
    longest = sorted(step.ops, key=_length, reverse=True)[:LONGEST]
    if longest:
        lines.append("longest ops:")
        lines += align_columns(
            [("  " + op.op, op.device, _milliseconds(_length(op))) for op in longest]
        )
    return "\n".join(lines)


def align_columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return rows as lines whose columns stand under each other, the first to the left."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(step: StepTiming, device: str) -> tuple[str, ...]:
    ops = [op for op in step.ops if op.device == device]
    last = max(op.finish for op in ops)
    end = max(op.finish for op in step.ops)
    computing = sum(map(_length, ops))
    sent = sum(t.bytes for t in step.transfers if t.source == device)
    received = sum(t.bytes for t in step.transfers if t.target == device)
    share = f"{computing / end:.0%}" if end > 0 else "-"
    times = (_milliseconds(min(op.start for op in ops)), _milliseconds(last))
    return (
        device,
        str(len(ops)),
        _milliseconds(computing),
        share,
        *times,
        _mb(sent),
        _mb(received),
    )


def _length(op: OpTiming) -> float:
    """Return the seconds of an op, by its worker's own clock if that is known."""
    if op.busy is None:
        return op.finish - op.start
    return op.busy


def _milliseconds(seconds: float) -> str:
    return f"{milliseconds_text(seconds, '.3g')} ms"


def _mb(count: float) -> str:
    return f"{count / 1e6:.3g} MB"
