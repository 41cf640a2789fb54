"""A whole program as one straight-line Python function that notes a clock after every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnplace.tracing.program import Program, ProgramOp, Ref, iter_refs

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
        self.program, self.device = program, device
        self.constants: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        last = {name: i for i, op in enumerate(program.ops) for name in (*op.reads, *op.results)}
        self.dying: dict[int, list[str]] = {}
        for name, i in last.items():
            if name is not None and name not in program.inputs:
                self.dying.setdefault(i, []).append(name)

    def compiled(self) -> Step:
        body = [f"{self.name(n)} = inputs[{n!r}]" for n in self.program.inputs]
        body.append("tick()")
        for i, op in enumerate(self.program.ops):
            body.append(self.call(op))
            if i in self.dying:
                body.append("del " + ", ".join(self.name(n) for n in self.dying[i]))
            body.append("tick()")
        source = "def step(inputs, tick):\n    " + "\n    ".join(body) + "\n"
        exec(compile(source, "<gnnplace profiled program>", "exec"), self.constants)
        step: Step = self.constants["step"]
        return step

    def call(self, op: ProgramOp) -> str:
        arguments = [self.text(a) for a in op.args]
        arguments += [f"{key}={self.text(a)}" for key, a in op.kwargs.items()]
        call = f"{self.constant(op.target)}({', '.join(arguments)})"
        left = ", ".join("_" if r is None else self.name(r) for r in op.results)
        drop = "; _ = None" if None in op.results else ""
        return f"{left} = {call}{drop}" if left else call

    def name(self, value: str) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def text(self, value: Any) -> str:
        if isinstance(value, Ref):
            return self.name(value.name)
        if next(iter_refs(value), None) is None:
            return self.constant(self.device if isinstance(value, torch.device) else value)
        if isinstance(value, list):
            return "[" + ", ".join(self.text(item) for item in value) + "]"
        return "(" + "".join(f"{self.text(item)}, " for item in value) + ")"

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name
