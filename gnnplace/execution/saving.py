"""Carries the numbers of one step from the workers to the parent through shared memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gnnplace.execution.result import StepValues
from gnnplace.runtime.memory import Arena
from gnnplace.tracing.operations import mean_gradient
from gnnplace.tracing.program import Program, base_name

STATEFUL = ("parameter", "buffer", "optimizer")


def copies(program: Program, value: str) -> list[str]:
    """The names of a value in all micro-batches (itself, as captured)."""
    if program.microbatches == 1:
        return [value]
    return [f"{base_name(value)}#{k}" for k in range(program.microbatches)]


def made_values(program: Program) -> tuple[str, ...]:
    """Values made by ops whose numbers a run reports: losses, gradients, outputs."""
    names = [*program.losses, *program.outputs]
    for value in program.gradients.values():
        names += copies(program, value)
    return tuple(dict.fromkeys(name for name in names if name not in program.inputs))


def state_values(program: Program) -> tuple[str, ...]:
    """Inputs whose numbers after the step a run reports: parameters, buffers, optimizer state."""
    return tuple(name for name, value in program.inputs.items() if value.kind in STATEFUL)


class SavedValues:
    """Room for the numbers of one step, shared with the workers that fill it.

    Args:
        program: Whose numbers.
        names: Which values; make it before forking.

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
        """Keeps the numbers of a value; those that nobody asked for are dropped."""
        if name in self.tensors:
            self.tensors[name].copy_(tensor)

    def loss(self) -> float:
        """Mean of the losses of all micro-batches."""
        losses = [float(self.tensors[name]) for name in self._program.losses]
        return sum(losses) / len(losses)

    def values(self) -> StepValues:
        """What was saved, by the names of the model."""
        program, saved = self._program, self.tensors
        states: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in STATEFUL}
        for name in state_values(program):
            states[program.inputs[name].kind][program.inputs[name].source] = saved[name]
        gradients = {
            parameter: self._mean(copies(program, value))
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
        return self.tensors[name] if name in self.tensors else self._program.initial[name]

    def _mean(self, names: list[str]) -> torch.Tensor:
        return mean_gradient([self._one(name) for name in names])
