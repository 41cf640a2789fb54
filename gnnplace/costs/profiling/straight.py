"""A whole program as one straight-line Python function that notes a clock after every op."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gnnplace.tracing.calls import CallWriter, on_device
from gnnplace.tracing.program import Program

Step = Callable[[dict[str, torch.Tensor], Callable[[], None]], None]


def straight_line(program: Program, device: torch.device) -> Step:
    """Compile a program.

    Args:
        program: What to run, in its own order.
        device: Takes the place of every device among the arguments.

    Returns:
        `step(inputs, tick)`: runs all ops on the inputs (which updates change in place) and calls
        `tick()` before the first and after each. Values are freed after their last use, before
        the tick, so that the cost of freeing is the op's.
    """
    return _Writer(program, device).compiled()


class _Writer:
    def __init__(self, program: Program, device: torch.device) -> None:
        self.program = program
        self.names: dict[str, str] = {}
        self.calls = CallWriter(self.name, lambda value: on_device(value, device))
        last = {name: i for i, op in enumerate(program.ops) for name in (*op.reads, *op.results)}
        self.dying: dict[int, list[str]] = {}
        for name, i in last.items():
            if name is not None and name not in program.inputs:
                self.dying.setdefault(i, []).append(name)

    def compiled(self) -> Step:
        body = [f"{self.name(n)} = inputs[{n!r}]" for n in self.program.inputs]
        body.append("tick()")
        for i, op in enumerate(self.program.ops):
            body += self.calls.lines(op)
            if i in self.dying:
                body.append("del " + ", ".join(self.name(n) for n in self.dying[i]))
            body.append("tick()")
        source = "def step(inputs, tick):\n    " + "\n    ".join(body) + "\n"
        scope = dict(self.calls.constants)
        exec(compile(source, "<gnnplace profiled program>", "exec"), scope)
        step: Step = scope["step"]
        return step

    def name(self, value: str) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")
