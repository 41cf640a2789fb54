"""Deviations of a captured step from the model: a line for each, or a refusal.

Lines stand in `Program.notices`; `capture` gives each as a `ChangedWarning`, and the command line
prints them. Some steps cannot be kept because of what the model is, whatever its code does:

* A hook after the accumulation of a gradient (`register_post_accumulate_grad_hook`) acts on
  `.grad`, which a captured step does not have; often the hook is the optimizer itself.
* Distributed wrappers exchange gradients outside of autograd.
* Different tensors share memory: a step that changes one changes the other, but each is placed by
  itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from gnnplace.errors import CaptureError, ChangedWarning
from gnnplace.tracing.aten.traced import Traced
from gnnplace.tracing.program import ProgramOp, operations
from gnnplace.tracing.step import StepModule

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def notices(
    step: nn.Module, traced: Traced, ops: Iterable[ProgramOp]
) -> tuple[str, ...]:
    """Return the lines about a captured step.

    Args:
        step: The model and its loss as one module.
        traced: The graph that torch traced, and its ends.
        ops: The ops of the program.
    """
    return (
        *_random(ops),
        *_inputs(traced),
        *_hooks(step),
        *_outside(traced),
        *traced.notes,
    )


def give(lines: Iterable[str]) -> None:
    """Warn of each line."""
    for line in lines:
        warnings.warn(line, ChangedWarning, stacklevel=3)


def _random(ops: Iterable[ProgramOp]) -> Iterator[str]:
    """Yield a line about random numbers."""
    drawing = [op for op in ops if op.target is operations.seeded]
    if drawing:
        if len(drawing) == 1:
            count = "1 random op"
        else:
            count = f"{len(drawing)} random ops"
        yield (
            f"{count} ({drawing[0].name}{', ...' if len(drawing) > 1 else ''}) of the step: seeds "
            "are made of names and the step's number, so that all placements draw the same; eager "
            "mode draws other numbers"
        )


def _inputs(traced: Traced) -> Iterator[str]:
    """Yield a line about an input that the model changes."""
    changed = sorted(
        {slot.name for slot, _ in traced.outputs if slot.kind == "ignored"}
    )
    if changed:
        yield f"the model changes its input {changed[0]} in place: the caller's stays as it is"


def _hooks(step: nn.Module) -> Iterator[str]:
    """Yield lines about hooks of the user's, not those by which torch computes weights."""
    for name, module in step.named_modules():
        hooks = [
            hook
            for table in HOOKS
            for hook in (getattr(module, table, None) or {}).values()
        ]
        homes = (
            str(getattr(h, "__module__", None) or type(h).__module__) for h in hooks
        )
        if not all(home.startswith("torch.") for home in homes):
            shown = name.removeprefix("model").lstrip(".") or "model"
            yield (
                f"hooks of module {shown!r} ran at capture alone: what they compute is in the "
                "step, what else they do (printing, counting) is not done again"
            )


def _outside(traced: Traced) -> Iterator[str]:
    """Yield lines about constants that need a gradient."""
    owner = traced.graph.owning_module
    for node in traced.graph.find_nodes(op="get_attr"):
        tensor = getattr(owner, str(node.target), None)
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            yield (
                f"a tensor of shape {tuple(tensor.shape)} that needs a gradient is no parameter of "
                "the model: it is read as a constant and not trained"
            )


def check_layouts(step: StepModule) -> None:
    """Refuse tensors that are not dense, which no recorded step keeps.

    Raises:
        CaptureError: the tensor is named.
    """
    tensors: list[tuple[str, object]] = [
        *(
            (f"parameter {_format_name(name)!r}", tensor)
            for name, tensor in step.named_parameters()
        ),
        *(
            (f"buffer {_format_name(name)!r}", tensor)
            for name, tensor in step.named_buffers()
        ),
        *((f"input {i}", tensor) for i, tensor in enumerate(step.inputs())),
    ]
    for path, module in step.named_modules():
        tensors += [
            (f"attribute {_format_name(f'{path}.{name}')!r}", x)
            for name, x in vars(module).items()
        ]
    for label, tensor in tensors:
        if isinstance(tensor, torch.Tensor) and (
            tensor.layout != torch.strided or tensor.is_quantized
        ):
            if tensor.is_quantized:
                kind = "quantized"
            else:
                kind = str(tensor.layout)
            raise CaptureError(
                f"{label} is no dense tensor ({kind}), and a recorded step keeps dense ones alone; "
                "make it dense (.to_dense(), .dequantize()), or compute with indices and values"
            )


def check_model(step: nn.Module) -> None:
    """Refuse a model that cannot be captured, before it is traced.

    Raises:
        CaptureError: the parameter or the module is named.
    """
    for name, parameter in step.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise CaptureError(
                f"parameter {_format_name(name)!r} has a post-accumulate hook, which acts "
                "on .grad; a captured step has none: use parameter.register_hook, or the optimizer"
            )
    for name, module in step.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        wrappers = kinds.intersection(WRAPPERS)
        if wrappers:
            raise CaptureError(
                f"module {_format_name(name) or 'model'!r} is wrapped in {min(wrappers)}, whose "
                "exchange of gradients cannot be captured; give the module inside"
            )


def check_memory(traced: Traced) -> None:
    """Refuse a step that changes a tensor whose memory another one shares.

    Raises:
        CaptureError: two tensors share memory; both are named.
    """
    changed = {
        slot.name for slot, _ in traced.outputs if slot.kind in ("gradient", "buffer")
    }
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in (*_read(traced), *_constants(traced)):
        by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(
            (name, tensor)
        )
    for shared in by_storage.values():
        for i, (name, tensor) in enumerate(shared):
            for other_name, view in shared[i + 1 :]:
                if not changed.isdisjoint((name, other_name)) and _overlap(
                    tensor, view
                ):
                    raise CaptureError(
                        f"{_format_name(name)!r} and {_format_name(other_name)!r} share "
                        "memory, and the step changes it under one name; let both be one "
                        "tensor, or copy it"
                    )


def _read(traced: Traced) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors of the model that the step reads."""
    for node in traced.graph.find_nodes(op="placeholder"):
        name = traced.inputs[node.name].name
        if node.users and name in traced.tensors:
            yield name, traced.tensors[name]


def _constants(traced: Traced) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors outside of the model that its code reads."""
    owner = traced.graph.owning_module
    for node in traced.graph.find_nodes(op="get_attr"):
        tensor = getattr(owner, str(node.target), None)
        if isinstance(tensor, torch.Tensor):
            yield "a tensor that the code reads", tensor


def _overlap(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one storage have a byte in common."""
    begin, end = _extent(tensor)
    other_begin, other_end = _extent(other)
    return begin < other_end and other_begin < end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte in the storage, and the one behind the last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((int(n) - 1) * int(stride) for n, stride in steps)
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + (reach + 1) * tensor.element_size() * min(tensor.numel(), 1)


def _format_name(name: str) -> str:
    """Return a name as the model has it."""
    return name.removeprefix("model").lstrip(".")
