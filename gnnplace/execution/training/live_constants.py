"""Hyper-parameters that may change between steps: learning rates and all that stands beside them.

A captured update op has its constants in its arguments. Here they move into shared memory, a row
for each group of parameters, and every update reads them when it runs.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnplace.errors import InputError
from gnnplace.execution.training.gradients import Gradients, Store
from gnnplace.runtime.memory import WORD
from gnnplace.tracing.optimizers import Optimizer
from gnnplace.tracing.program import UPDATE, Program, ProgramOp

PARAMETER = "update."
"""An update op is called `update.` and its parameter; see `gnnplace.tracing.builder`."""


class LiveConstants:
    """The constants of an optimizer, for every group of parameters, shared with forked workers.

    Args:
        method: The optimizer; its constants are numbers or tuples of numbers.
        num_groups: Groups of parameters; all begin with the optimizer's own constants.
    """

    def __init__(self, method: Optimizer, num_groups: int = 1) -> None:
        self._shape = [len(c) if isinstance(c, tuple) else 0 for c in method.constants]
        self._row = sum(max(size, 1) for size in self._shape)
        self._words = memoryview(mmap.mmap(-1, num_groups * self._row * WORD)).cast("d")
        for group in range(num_groups):
            self.set(group, method.constants)

    def set(self, group: int, constants: Sequence[Any]) -> None:
        """Sets the constants of a group, for the next step on.

        Raises:
            InputError: not the optimizer's number of constants.
        """
        flat = [float(x) for c in constants for x in (c if isinstance(c, tuple | list) else (c,))]
        if len(flat) != self._row:
            raise InputError(f"optimizer: {len(flat)} constants for group {group}, not {self._row}")
        for i, value in enumerate(flat):
            self._words[group * self._row + i] = value

    def get(self, group: int) -> tuple[Any, ...]:
        """The constants of a group, as the optimizer's update takes them."""
        position, found = group * self._row, []
        for size in self._shape:
            count = max(size, 1)
            values = tuple(self._words[position : position + count])
            found.append(values if size else values[0])
            position += count
        return tuple(found)


@dataclass(frozen=True, eq=False)
class LiveUpdate:
    """An update op that looks up its constants, and whether it is due, when it runs."""

    update: Callable[..., None]
    constants: LiveConstants
    group: int
    store: Store

    def __call__(self, parameter: torch.Tensor, gradients: Any, *state: torch.Tensor) -> None:
        """Updates a parameter, or stores its gradient where the pass is to do that.

        Args:
            parameter: Changed in place.
            gradients: One, or one for each micro-batch.
            *state: Optimizer state; changed in place.
        """
        if not self.store.keeps(gradients):
            self.update(parameter, gradients, *state, *self.constants.get(self.group))

    def late(self, parameter: torch.Tensor, *state: torch.Tensor) -> None:
        """Updates a parameter with the gradient that is stored, if there is to be an update."""
        gradient = self.store.taken(parameter.device)
        if gradient is not None:
            self.update(parameter, [gradient], *state, *self.constants.get(self.group))


def with_live_constants(
    program: Program,
    method: Optimizer,
    constants: LiveConstants,
    group: Mapping[str, int],
    gradients: Gradients,
) -> Program:
    """The program with updates that read `constants` and know `gradients`.

    Args:
        program: Captured with `method`.
        method: Its optimizer.
        constants: In shared memory.
        group: Group of each parameter by its name; others are in group 0.
        gradients: Stores for the gradients of its parameters.
    """
    count = len(method.constants)

    def live(op: ProgramOp) -> ProgramOp:
        if op.phase != UPDATE or op.target is not method.update:
            return op
        name = op.name.removeprefix(PARAMETER)
        target = LiveUpdate(
            method.update_of(name), constants, group.get(name, 0), gradients.stores[name]
        )
        return replace(op, target=target, args=op.args[: len(op.args) - count])

    return replace(program, ops=tuple(live(op) for op in program.ops))


def updated(program: Program) -> dict[str, torch.Tensor]:
    """Parameters that a program updates, as they begin, by their names in the model."""
    return {
        op.name.removeprefix(PARAMETER): program.initial[op.args[0].name]
        for op in program.ops
        if op.phase == UPDATE
    }


def with_state(program: Program, tensors: Mapping[str, torch.Tensor]) -> Program:
    """The program with other initial tensors for some of its inputs.

    Args:
        program: With its initial tensors.
        tensors: By value name.

    Raises:
        InputError: no such input, or a tensor of another shape.
    """
    for name, tensor in tensors.items():
        known = program.inputs.get(name)
        if known is None or tuple(tensor.shape) != known.info.shape:
            raise InputError(
                f"{program.name}: no input {name!r} of shape {tuple(tensor.shape)}; it belongs to "
                "another model"
            )
    return replace(program, initial={**program.initial, **tensors})
