"""Writes each device's part of a step as straight-line Python, without decisions at run time.

An op costs one call, a receive or send one call, a tick two reads of a clock. Values are freed
after their last use. `LineMap` says which op a line of the generated source belongs to, so that a
traceback names the op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gnnplace.run.placed.plan import ExecutionPlan, PlanSegment
from gnnplace.tracing import CallWriter, ProgramOp

FILENAME = "<gnnplace device program>"
TICKS = 2
"""Clocks of a tick: wall and this thread's CPU time, both in nanoseconds."""
SIGNAL_NAME = "signal"
"""Name of the tensor that says no more than that it is there."""
StepFunction = Callable[[int, memoryview, int], None]
"""`step(turn, ticks, base)`: runs a step, whose ticks are the words of `ticks` from `base` on."""


@dataclass
class DeviceProgram:
    """A device's step as source, and what its names mean.

    Attributes:
        source: Defines `step(turn, ticks, base)`.
        constants: Global names of the source: functions and constants.
        inputs: Program input -> global name of its tensor.
        lines: Line of the source -> name of its op.
        values: Local name of the source -> value of the program.
        num_ticks: Ticks of a step; tick t of the step is words `base + 2 t` (wall, CPU).
        segment_ticks: The segment ticks of every segment: ticks of its start, of its end and of its
            last send.
        send_ticks: The ticks of the start and the end of every message sent.
    """

    source: str
    constants: dict[str, Any]
    inputs: dict[str, str]
    lines: dict[int, str]
    num_ticks: int
    segment_ticks: list[tuple[int, int, int]] = field(default_factory=list)
    send_ticks: dict[int, tuple[int, int]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def bind(self, names: dict[str, Any]) -> StepFunction:
        """Compile the step function with the constants and `names`: tensors, senders, receivers."""
        scope = {**self.constants, **names}
        exec(compile(self.source, FILENAME, "exec"), scope)
        function: StepFunction = scope["step"]
        return function


def device_program(
    plan: ExecutionPlan, device: int, saved: Iterable[str] = ()
) -> DeviceProgram:
    """Write the source of the step of `device`.

    Args:
        plan: What every device does.
        device: The index of the device in the problem.
        saved: Values that are handed to `save(name, tensor)` where they are made.
    """
    return _ProgramWriter(plan, device, frozenset(saved)).write()


class _ProgramWriter:
    def __init__(self, plan: ExecutionPlan, device: int, saved: frozenset[str]) -> None:
        self.plan = plan
        self.saved = saved
        self.segments = plan.segments[device]
        self.lines: list[str] = ["def step(turn, ticks, base):"]
        self.names: dict[str, str] = {}
        self.calls = CallWriter(self._name)
        self.out = DeviceProgram("", self.calls.constants, {}, {}, 0)
        self.last_use = self._last_uses()

    def write(self) -> DeviceProgram:
        for number, segment in enumerate(self.segments):
            self._segment(number, segment)
        self.out.source = "\n".join(self.lines) + "\n"
        self.out.values = {local: value for value, local in self.names.items()}
        return self.out

    def _last_uses(self) -> dict[tuple[int, int], list[str]]:
        """Return values by the position (segment, op in it) of their last use; sends come last."""
        last: dict[str, tuple[int, int]] = {}
        for number, segment in enumerate(self.segments):
            for k, i in enumerate(segment.ops):
                op = self.plan.program.ops[i]
                for name in (*op.reads, *(r for r in op.results if r is not None)):
                    last[name] = (number, k)
            for transfer in (self.plan.transfers[message] for message in segment.sends):
                if not transfer.signal:
                    at = (number, len(segment.ops))
                    last[transfer.value] = max(last[transfer.value], at)
        dying: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name, position in last.items():
            if name not in self.plan.program.inputs:
                dying[position].append(name)
        return dying

    def _segment(self, number: int, segment: PlanSegment) -> None:
        self._add(f"seg[0] = {number}")
        for message in segment.receives:
            name = self._sent(message)
            self._add(
                ("" if name == SIGNAL_NAME else f"{name} = ") + f"r{message}(turn)"
            )
        if segment.receives or number == 0:
            start = self._tick()
        else:
            start = self.out.num_ticks - 1
        for k, i in enumerate(segment.ops):
            self._op(self.plan.program.ops[i])
            self._free((number, k))
        finish = end = self._tick()
        for message in segment.sends:
            self._add(f"s{message}({self._sent(message)}, turn)")
            self.out.send_ticks[message] = (end, end := self._tick())
        self._free((number, len(segment.ops)))
        self.out.segment_ticks.append((start, finish, end))

    def _op(self, op: ProgramOp) -> None:
        self.out.lines[len(self.lines) + 1] = op.name
        for line in self.calls.lines(op):
            self._add(line)
        for result in op.results:
            if result in self.saved:
                self._add(f"save({result!r}, {self._name(result)})")

    def _free(self, position: tuple[int, int]) -> None:
        names = [self._name(value) for value in self.last_use.get(position, [])]
        if names:
            self._add("del " + ", ".join(names))

    def _tick(self) -> int:
        tick = self.out.num_ticks
        self.out.num_ticks += 1
        at = TICKS * tick
        self._add(f"ticks[base + {at}] = wall(); ticks[base + {at + 1}] = cpu()")
        return tick

    def _sent(self, message: int) -> str:
        """Return the name of what a message carries."""
        transfer = self.plan.transfers[message]
        if transfer.signal:
            return SIGNAL_NAME
        return self._name(transfer.value)

    def _add(self, line: str) -> None:
        self.lines.append("    " + line)

    def _name(self, value: str) -> str:
        if value in self.plan.program.inputs:
            return self.out.inputs.setdefault(value, f"i{len(self.out.inputs)}")
        return self.names.setdefault(value, f"v{len(self.names)}")
