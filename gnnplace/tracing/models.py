"""A model by its name, or a module, as a captured program at 1/M of its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.tracing.capturing import capture
from gnnplace.tracing.loading import cut, load
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program import Program
from gnnplace.zoo import Workload


def capture_model(
    model: str | nn.Module,
    inputs: Any = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    options: CaptureOptions | None = None,
    fake: bool = False,
) -> Program:
    """Captures a model's training step (or inference) at 1/M of its batch.

    Args:
        model: ``module:callable``, ``hf:CONFIG``, a zoo name, or a module with ``inputs``.
        inputs: Example inputs of a module.
        loss: As ``capture`` takes it; for a module.
        options: Optimizer, precision, micro-batches.
        fake: Never allocate the model's tensors; the program cannot be executed then.

    Raises:
        InputError: there is no such model, or its batch cannot be cut.
        CaptureError: naming the module and the line that cannot be captured.
    """
    options = options or CaptureOptions()
    workload = workload_of(model, inputs, loss, options.microbatches, fake=fake)
    return capture(
        workload.model,
        workload.inputs,
        loss=workload.loss,
        optimizer=options.optimizer,
        dtype=options.dtype,
        forward_only=options.forward_only,
        name=workload.name,
    )


def workload_of(
    model: str | nn.Module,
    inputs: Any = None,
    loss: Callable[..., torch.Tensor] | None = None,
    share: int = 1,
    *,
    fake: bool = False,
) -> Workload:
    """What is captured: a model, its inputs and its loss at ``1 / share`` of the batch.

    Raises:
        InputError: there is no such model, its inputs are missing, or the batch cannot be cut.
    """
    if isinstance(model, str):
        return load(model, share=share, fake=fake)
    if inputs is None:
        raise InputError("capture: example inputs are needed with a module")
    given = inputs if isinstance(inputs, dict | tuple) else (inputs,)
    workload = Workload(type(model).__name__, model, given, loss)
    return cut(workload, share) if share > 1 else workload
