"""Is what a run computed what eager PyTorch computes on the whole batch?

The run is compared bit for bit with one process that does the same work (`verification`); that
process cuts the batch alike and reads the same captured ops. Here it is the user's own module that
is called, once, on all of the batch. Orders of sums differ, so there is a tolerance.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

import torch

from gnnplace.execution.result import StepValues
from gnnplace.tracing.cut_numbers import (
    NEGLIGIBLE,
    VANISHED,
    coarsest,
    largest_of,
    relative_error,
)
from gnnplace.tracing.operations import seeded
from gnnplace.tracing.program import Program


@dataclass(frozen=True)
class WholeBatch:
    """A run's loss and gradients beside eager PyTorch's on the whole batch.

    Attributes:
        gradients: Number of gradients compared.
        worst: What is off the most.
        relative: By how much, over its largest magnitude.
        tolerance: Allowed.
        reason: Why nothing was compared; empty if it was.
    """

    gradients: int = 0
    worst: str = ""
    relative: float = 0.0
    tolerance: float = 0.0
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing that was compared is off."""
        return bool(self.reason) or self.relative <= self.tolerance

    def summary(self) -> str:
        """One line for people."""
        if self.reason:
            return f"not compared with eager PyTorch on the whole batch: {self.reason}"
        verdict = "equal" if self.passed else "are NOT"
        return (
            f"loss and {self.gradients} gradients {verdict} those of eager PyTorch on the whole "
            f"batch; the worst is {self.worst}: {self.relative:.2g} relative, allowed "
            f"{self.tolerance:.2g}"
        )


def beside_whole_batch(program: Program, values: StepValues | None) -> WholeBatch:
    """Compares a run's first step with eager PyTorch on the whole batch.

    Args:
        program: As captured or cut; it knows the module and the batch.
        values: The values of the run's first step.
    """
    reason = _reason(program, values)
    if reason:
        return WholeBatch(reason=reason)
    assert program.batch is not None
    assert program.batch.whole is not None
    assert values is not None
    loss, gradients = eager_step(program.batch.whole)
    floor = max(NEGLIGIBLE * largest_of(gradients.values()), VANISHED * float(loss.abs()))
    errors = {"the loss": relative_error(torch.tensor(values.loss), loss)}
    for name in sorted(gradients.keys() & values.gradients.keys()):
        errors[f"the gradient of {name}"] = relative_error(
            values.gradients[name], gradients[name], floor
        )
    worst = max(errors, key=errors.__getitem__)
    tolerance = coarsest(info.dtype for info in program.values.values())
    return WholeBatch(len(errors) - 1, worst, errors[worst], tolerance)


def _reason(program: Program, values: StepValues | None) -> str:
    batch = program.batch
    if batch is None or batch.whole is None or values is None or values.loss is None:
        return "the run has no loss, or was captured without its module"
    if batch.count != program.microbatches and program.microbatches > 1:
        return "the batch was cut by hand"
    if any(op.target is seeded for op in program.ops):
        return "the step draws random numbers"
    return batch.differs or "; ".join(batch.exceptions)


def eager_step(step: torch.nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of a copy of a `StepModule` on its inputs, by the model's names."""
    with warnings.catch_warnings():  # of torch's own classes, about their own attributes
        warnings.simplefilter("ignore", FutureWarning)
        own = copy.deepcopy(step)
    loss = own(*own.inputs())  # type: ignore[operator]
    loss.backward()
    named = own.named_parameters()
    found = {n.removeprefix("model."): p.grad for n, p in named if p.grad is not None}
    return loss.detach(), found
