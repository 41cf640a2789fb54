"""`capture`: a model's training step, or its inference, as a `Program`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError
from gnnplace.tracing.builder import Builder
from gnnplace.tracing.cut_batch import CutBatch
from gnnplace.tracing.cutting import Cutter, Whole, finished
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
    whole: Whole | None = None,
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
        name: Of the program; the model's class by default.
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
    return replace(finished(program, batch), notices=said)


def _cutter(whole: Whole, share: StepModule, dtype: str, name: str) -> Cutter:
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

    if mode := detect_fake_mode([*model.parameters(), *model.buffers()]):
        # What is fake is of one mode, which must not be copied with it.
        memo: dict[int, Any] = {id(mode): mode} | {id(b): convert(b) for b in model.buffers()}
        memo |= {id(p): _parameter(convert(p.detach()), p) for p in model.parameters()}
        return copy.deepcopy(model, memo), pytree.tree_map(convert, inputs)
    copied = copy.deepcopy(model)
    for own, other in zip(model.parameters(), copied.parameters(), strict=True):
        _parameter(other, own)
    return copied.to(target), pytree.tree_map(convert, inputs)


def _parameter(tensor: torch.Tensor, like: nn.Parameter) -> nn.Parameter:
    """A tensor as a parameter with the hooks of another one, which no copy of a tensor has."""
    parameter = (
        tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, like.requires_grad)
    )
    parameter._backward_hooks = like._backward_hooks
    parameter._post_accumulate_grad_hooks = like._post_accumulate_grad_hooks
    return parameter


def _is_fake(model: nn.Module, step: StepModule) -> bool:
    tensors = chain(model.parameters(), model.buffers(), step.inputs())
    return any(isinstance(t, FakeTensor) for t in tensors)
