"""A model by its name, or a module, as a captured program at 1/M of its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from gnnplace.errors import CaptureError, InputError
from gnnplace.tracing.capturing import capture
from gnnplace.tracing.cut_batch import batch_axes
from gnnplace.tracing.cutting import UncutBatch
from gnnplace.tracing.loading import cut, is_sized, load
from gnnplace.tracing.optimizers import Optimizer
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
        OtherLossError: naming the op that mixes the examples of the batch.
        CaptureError: naming the module and the line that cannot be captured.
    """
    options = options or CaptureOptions()
    whole = workload_of(model, inputs, loss, fake=fake)
    share = None
    if options.microbatches > 1 and isinstance(model, str) and is_sized(model):
        share = load(model, share=options.microbatches, fake=fake)
    return capture_workload(
        whole,
        options.microbatches,
        share=share,
        optimizer=options.optimizer,
        dtype=options.dtype,
        forward_only=options.forward_only,
        accept_other_loss=options.accept_other_loss,
    )


def capture_workload(
    whole: Workload,
    count: int = 1,
    *,
    share: Workload | None = None,
    optimizer: str | Optimizer = "sgd",
    dtype: str = "float32",
    forward_only: bool = False,
    accept_other_loss: bool = False,
) -> Program:
    """Captures one of `count` shares of a workload's batch, if it may be cut.

    Args:
        whole: With the inputs of the whole batch.
        count: Shares, M.
        share: One that was built by itself; by default the whole is cut.
        optimizer: As `capture` takes it.
        dtype: The same.
        forward_only: The same.
        accept_other_loss: Capture it also where its loss is another one.

    Raises:
        OtherLossError: naming the op that mixes the examples of the batch.
        InputError, CaptureError: see `capture`.
    """
    workload = whole
    if count > 1:
        workload = share_of(share or cut(whole, count), whole, count)
    try:
        return capture(
            workload.model,
            workload.inputs,
            loss=workload.loss,
            optimizer=optimizer,
            dtype=dtype,
            forward_only=forward_only,
            name=workload.name,
            whole=UncutBatch(whole, count, accept_other_loss) if count > 1 else None,
        )
    except CaptureError as error:
        raise CaptureError(f"{error}{_uncut(workload, count)}") from error


def _uncut(share: Workload, count: int) -> str:
    """What a share that failed was given whole, since its first axis is not the batch's."""
    sizes = [tuple(x.shape) for x in pytree.tree_leaves(share.inputs) if hasattr(x, "shape")]
    batch = sizes[0][0] if sizes and sizes[0] else 0
    odd = next((size for size in sizes if size and size[0] != batch), None)
    if count == 1 or odd is None:
        return ""
    return (
        f"; it is one of {count} shares of the batch, whose first input has {batch} examples; the "
        f"input of shape {list(odd)} has another first axis and was given whole: give it one row "
        "an example, or leave micro-batches out"
    )


def say_batch(program: Program, progress: Callable[[str], None] | None) -> None:
    """Says how the batch was cut, where that is worth a word."""
    batch = program.batch
    if progress is None or batch is None or batch.count == 1:
        return
    told = [*batch.notes, *batch.exceptions]
    told += [f"accepted although {batch.differs}"] if batch.differs else []
    if told:
        progress(f"{batch.count} micro-batches: {'; '.join(told)}")


def share_of(share: Workload, whole: Workload, count: int) -> Workload:
    """A share that was built by itself, with the state of the whole and the first of its inputs.

    Whoever builds it may draw the batch before the parameters, which are other ones then.
    """
    mine, known = share.model.state_dict(), whole.model.state_dict()
    with torch.no_grad():
        for name in mine.keys() & known.keys():
            if share.model is not whole.model and mine[name].shape == known[name].shape:
                mine[name].copy_(known[name])
    leaves, spec = pytree.tree_flatten(share.inputs)
    others = pytree.tree_leaves(whole.inputs)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    axes = batch_axes([leaves[i] for i in tensors], [others[i] for i in tensors])
    for i, axis in zip(tensors, axes, strict=True):
        leaves[i] = others[i] if axis is None else others[i].chunk(count, axis)[0].contiguous()
    return replace(share, inputs=pytree.tree_unflatten(leaves, spec))


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
