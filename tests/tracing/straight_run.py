"""A program run straight, in this process: what captured steps are compared with eager ones by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gnnplace.run.placed.result import copies
from gnnplace.tracing.program.operations import mean_gradient, set_step
from gnnplace.tracing.program.program import Program, clone_initial, map_refs


@dataclass(frozen=True)
class StepResult:
    """What one step leaves.

    Attributes:
        losses: One for each micro-batch (empty forward-only).
        outputs: Of a forward-only program.
        gradients: By parameter; of micro-batches the mean.
        state: Every parameter, buffer and optimizer tensor after the step, by value name.
    """

    losses: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    gradients: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]

    @property
    def loss(self) -> torch.Tensor:
        """Mean of the losses of the micro-batches."""
        return torch.stack(self.losses).mean()


def run_program(
    program: Program, step: int = 0, state: Mapping[str, torch.Tensor] | None = None
) -> StepResult:
    """Run one step.

    Args:
        program: What to run.
        step: Number of the step; seeds of random ops depend on it.
        state: Inputs to begin with, such as the `state` of the step before; what is not in it
            comes from `program.initial`. Not changed.

    Returns:
        Losses, gradients and the state after the step.

    Raises:
        InputError: the program was captured without tensors.
    """
    values = clone_initial(program)
    values.update({n: t.clone() for n, t in (state or {}).items() if n in values})
    set_step(step)
    with torch.no_grad():
        for op in program.ops:
            args = map_refs(op.args, lambda ref: values[ref.name])
            kwargs = map_refs(op.kwargs, lambda ref: values[ref.name])
            _store(values, op.results, op.target(*args, **kwargs))
        return _result(program, values)


def _store(
    values: dict[str, torch.Tensor], names: tuple[str | None, ...], result: Any
) -> None:
    items = result if isinstance(result, list | tuple) else (result,)
    for name, item in zip(names, items, strict=False):
        if name is not None:
            values[name] = item


def _result(program: Program, values: dict[str, torch.Tensor]) -> StepResult:
    kept = ("parameter", "buffer", "optimizer")
    return StepResult(
        losses=tuple(values[name] for name in program.losses),
        outputs=tuple(values[name] for name in program.outputs),
        gradients={
            parameter: mean_gradient([values[copy] for copy in copies(program, name)])
            for parameter, name in program.gradients.items()
        },
        state={n: values[n] for n, i in program.inputs.items() if i.kind in kept},
    )
