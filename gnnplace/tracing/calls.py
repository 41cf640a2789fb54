"""Ops of a program as lines of straight-line Python: calls, names of values, constants.

Whoever writes a program as source shares this: the profiler's timed program and the step that each
device runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from gnnplace.tracing.program import ProgramOp, Ref, iter_refs, map_refs

PLAIN = (int, str, bool, type(None))


VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def on_device(value: Any, device: torch.device) -> Any:
    """What stands on `device` for a constant of a program, or for the function of an op.

    Devices become this one. A view that a CPU's strides allow may need a copy elsewhere, where
    kernels lay their results out otherwise: `reshape` copies where it must.
    """
    if isinstance(value, torch.device):
        return device
    if device.type != "cpu" and isinstance(value, OpOverload) and value in VIEWS:
        return torch.ops.aten.reshape.default
    return value


class CallWriter:
    """Writes calls.

    Args:
        name_of: The local name of a value of the program.
        constant_of: What stands for a constant or a function, such as another device; itself by
            default.

    Attributes:
        constants: Global names of the source: functions and constants.
    """

    def __init__(
        self,
        name_of: Callable[[str], str],
        constant_of: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.name_of, self.constant_of = name_of, constant_of
        self.constants: dict[str, Any] = {}

    def lines(self, op: ProgramOp) -> list[str]:
        """The op's call, and a line that lets go of results that nobody reads."""
        arguments = [self.text(value) for value in op.args]
        arguments += [f"{key}={self.text(value)}" for key, value in op.kwargs.items()]
        call = f"{self.constant(self.constant_of(op.target))}({', '.join(arguments)})"
        targets = ["_" if result is None else self.name_of(result) for result in op.results]
        written = [f"{', '.join(targets)} = {call}" if targets else call]
        return [*written, "_ = None"] if "_" in targets else written

    def text(self, value: Any) -> str:
        """An argument as source."""
        if isinstance(value, Ref):
            return self.name_of(value.name)
        if type(value) in PLAIN:
            return repr(value)
        if next(iter_refs(value), None) is None:
            # Plain lists, as ATen wants them.
            return self.constant(self.constant_of(map_refs(value, lambda ref: ref)))
        if isinstance(value, list):
            return "[" + ", ".join(self.text(item) for item in value) + "]"
        if isinstance(value, dict):
            items = (f"{key!r}: {self.text(item)}" for key, item in value.items())
            return "{" + ", ".join(items) + "}"
        return "(" + "".join(f"{self.text(item)}, " for item in value) + ")"

    def constant(self, value: Any) -> str:
        """A global name for a value."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name
