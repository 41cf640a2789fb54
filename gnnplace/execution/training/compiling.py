"""`compile`: a model, a placement and an optimizer become a step for a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from gnnplace.execution.structure import read_plan
from gnnplace.execution.training.training_step import TrainingStep
from gnnplace.problem import Problem
from gnnplace.problem.constraints.constraints import Given
from gnnplace.problem.placement import Placement
from gnnplace.tracing import load
from gnnplace.tracing.optimizers import Optimizer
from gnnplace.tracing.step import Inputs
from gnnplace.zoo import Workload


def compile(
    model: nn.Module | str,
    placement: Placement | str | Path,
    optimizer: str | Optimizer | torch.optim.Optimizer | None = "sgd",
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    inputs: Inputs | None = None,
    problem: Problem | None = None,
    microbatches: int = 1,
    groups: int | None = None,
    dtype: str = "float32",
    mode: str = "auto",
    transport: str = "shm",
    timeout: float = 120.0,
    accept_other_loss: bool = False,
    constraints: Given | None = None,
) -> TrainingStep:
    """A training step that runs where a placement says.

    Args:
        model: A module, or what `capture` takes by name. It is trained: its parameters and buffers
            become views of the memory that the workers share.
        placement: A placement, or the path of its file.
        optimizer: An optimizer of the model's parameters whose step treats every parameter by
            itself, as all of `torch.optim` but LBFGS do. Its `param_groups` are read before every
            update, its state is kept true, and its `step()` runs on the workers until the step is
            closed. Or "sgd", "adamw", or one of `gnnplace.tracing.optimizers`; None: gradients
            alone.
        loss: As `capture` takes it; a model called by name has its own.
        inputs: Example batch; without one the first batch is captured.
        problem: That the placement is of; needed for one in memory whose model was grouped or cut
            otherwise than the next two say.
        microbatches: The microbatches of a placement in memory without its problem.
        groups: The same.
        dtype: "float32" or "bfloat16"; a placement file says it itself.
        mode: "measured", "emulated" or "auto"; see `execute`.
        transport: "shm" or "gloo".
        timeout: Seconds without progress after which a step is given up.
        accept_other_loss: Cut the batch also where the loss of its shares is another one; a
            placement file that was made so says it itself.
        constraints: Those that the model of a placement in memory was grouped with.

    Raises:
        OtherLossError: the loss of the micro-batches is another one; names the op.
        FormatError, MismatchError: a placement of another model or cluster.
        InputError, UnsupportedError, CaptureError: model or optimizer that cannot be placed.
    """
    plan = read_plan(
        placement,
        problem,
        microbatches=microbatches,
        groups=groups,
        dtype=dtype,
        constraints=constraints,
    )
    if accept_other_loss:
        plan = replace(plan, accept_other_loss=True)
    workload = _workload(model, inputs, loss)
    step = TrainingStep(workload.model, workload.loss, plan, problem, optimizer)
    step.options = {"mode": mode, "transport": transport, "timeout": timeout}
    if workload.inputs:
        step.prepare(workload.inputs)
    return step


def _workload(
    model: nn.Module | str, inputs: Inputs | None, loss: Callable[..., torch.Tensor] | None
) -> Workload:
    if isinstance(model, str):
        return load(model)
    given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    return Workload(type(model).__name__, model, () if given is None else given, loss)  # type: ignore[arg-type]
