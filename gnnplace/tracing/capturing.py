"""`capture`: a model's training step, or its inference, as a `Program`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError
from gnnplace.tracing.builder import Builder
from gnnplace.tracing.cut_batch import CutBatch
from gnnplace.tracing.cutting import Cutter, UncutBatch, finished
from gnnplace.tracing.export import trace
from gnnplace.tracing.notices import give, notices
from gnnplace.tracing.optimizers import Optimizer
from gnnplace.tracing.optimizers import optimizer as find_optimizer
from gnnplace.tracing.program import Program
from gnnplace.tracing.step import Inputs, StepModule

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def capture(
    model: nn.Module,
    inputs: Inputs,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    optimizer: str | Optimizer = "sgd",
    dtype: str = "float32",
    forward_only: bool = False,
    name: str | None = None,
    whole: UncutBatch | None = None,
) -> Program:
    """Capture one step of a model as a program of ATen ops.

    The model is captured in the mode (train or eval) that it is in. Models whose parameters are
    fake (made under `FakeTensorMode`) are captured without a byte of them.

    Args:
        model: Left as it is; the program's `initial` shares its tensors, to be copied before
            anything changes them.
        inputs: Example inputs: positional, by keyword, or one tensor.
        loss: See `StepModule`.
        optimizer: "sgd", "adamw", or one of `gnnplace.tracing.optimizers`.
        dtype: "float32": as it is; "bfloat16": parameters, buffers and inputs are converted.
        forward_only: Inference: no loss, backward or update.
        name: The name of the program; the model's class by default.
        whole: The batch that the inputs are a share of, to prove that it may be cut.

    Returns:
        The program, without dead code. What it does otherwise than the model stands in its
        `notices` and is given as `ChangedWarning`s.

    Raises:
        CaptureError: the model cannot be captured; names the module and the line.
        InputError: inputs, optimizer or dtype that cannot be used.
        OtherLossError: a share whose loss is another one than that of the whole batch.
    """
    method = find_optimizer(optimizer)
    model, inputs = _converted(model, inputs, dtype)
    step = StepModule(model, loss, inputs, forward_only=forward_only)
    name = name or type(model).__name__
    cutter = None if whole is None else _cutter(whole, step, dtype, name)
    traced = trace(step, step.inputs(), backward=not forward_only, cutter=cutter)
    builder = Builder(traced, step.sources(), step.inputs())
    if not forward_only:
        builder.add_updates(method)
    program = builder.program(name, fake=_is_fake(model, step), forward_only=forward_only)
    said = notices(step, traced, program.ops)
    give(said)
    batch = CutBatch(1, (), whole=step) if cutter is None else cutter.batch
    classes = model.named_modules(remove_duplicate=False)
    return replace(
        finished(program, batch),
        notices=said,
        modules={path: type(module).__name__ for path, module in classes},
        state=_held(model),
    )


def _held(model: nn.Module) -> dict[str, str]:
    """Parameters and buffers, those too that no checkpoint keeps, and the first names of each."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    first: dict[int, str] = {}
    return {name: first.setdefault(id(t), name) for name, t in chain(parameters, buffers)}


def _cutter(whole: UncutBatch, share: StepModule, dtype: str, name: str) -> Cutter:
    workload = whole.workload
    model, inputs = _converted(workload.model, workload.inputs, dtype)
    step = StepModule(model, workload.loss, inputs, forward_only=share.forward_only)
    return Cutter(step, share, whole.count, accept=whole.accept, name=name)


def _converted(model: nn.Module, inputs: Inputs, dtype: str) -> tuple[nn.Module, Inputs]:
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r}: there are {', '.join(DTYPES)}")
    if dtype == "float32":
        return model, inputs
    target = DTYPES[dtype]

    def convert(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(target) if floating else leaf

    if any(isinstance(p, FakeTensor) for p in model.parameters()):
        # Fake tensors are not copied, or the copies would be of another mode than the inputs.
        kept = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
        copied = copy.deepcopy(model, kept)
        _convert_fake(copied, convert)
        return copied, pytree.tree_map(convert, inputs)
    copied = copy.deepcopy(model)
    for own, other in zip(model.parameters(), copied.parameters(), strict=True):
        # A copy of a tensor has none of its hooks.
        other._backward_hooks = own._backward_hooks
        other._post_accumulate_grad_hooks = own._post_accumulate_grad_hooks
    return copied.to(target), pytree.tree_map(convert, inputs)


def _convert_fake(model: nn.Module, convert: Callable[[Any], Any]) -> None:
    """What `Module.to` does, which cannot swap fake parameters; tied ones stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, own in module.named_parameters(recurse=False, remove_duplicate=False):
            if own not in made:
                made[own] = nn.Parameter(convert(own.detach()), own.requires_grad)
                made[own]._backward_hooks = own._backward_hooks
                made[own]._post_accumulate_grad_hooks = own._post_accumulate_grad_hooks
            module._parameters[name] = made[own]
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            module._buffers[name] = convert(buffer)


def _is_fake(model: nn.Module, step: StepModule) -> bool:
    tensors = chain(model.parameters(), model.buffers(), step.inputs())
    return any(isinstance(t, FakeTensor) for t in tensors)
