"""What a captured step does otherwise than the model, each in one line.

They stand in `Program.notices`; `capture` gives each as a `ChangedWarning`, and the command line
prints them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from gnnplace.errors import ChangedWarning
from gnnplace.tracing import operations
from gnnplace.tracing.program import ProgramOp
from gnnplace.tracing.traced import Traced

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def notices(step: nn.Module, traced: Traced, ops: Iterable[ProgramOp]) -> tuple[str, ...]:
    """What is said about a captured step.

    Args:
        step: Model and loss.
        traced: What torch traced.
        ops: The ops of the program.
    """
    return (*_random(ops), *_inputs(traced), *_hooks(step), *_outside(traced), *traced.notes)


def give(lines: Iterable[str]) -> None:
    """Warns of each line."""
    for line in lines:
        warnings.warn(line, ChangedWarning, stacklevel=3)


def _random(ops: Iterable[ProgramOp]) -> Iterator[str]:
    drawing = [op for op in ops if op.target is operations.seeded]
    if drawing:
        count = "1 random op" if len(drawing) == 1 else f"{len(drawing)} random ops"
        yield (
            f"{count} ({drawing[0].name}{', ...' if len(drawing) > 1 else ''}) of the step: seeds "
            "are made of names and the step's number, so that all placements draw the same; eager "
            "mode draws other numbers"
        )


def _inputs(traced: Traced) -> Iterator[str]:
    changed = sorted({slot.name for slot, _ in traced.outputs if slot.kind == "ignored"})
    if changed:
        yield f"the model changes its input {changed[0]} in place: the caller's stays as it is"


def _hooks(step: nn.Module) -> Iterator[str]:
    """Hooks of the user's own, not those by which torch computes weights."""
    for name, module in step.named_modules():
        hooks = [hook for table in HOOKS for hook in (getattr(module, table, None) or {}).values()]
        own = [hook for hook in hooks if not _origin(hook).startswith("torch.")]
        if own:
            shown = name.removeprefix("model").lstrip(".") or "model"
            yield (
                f"hooks of module {shown!r} ran at capture alone: what they compute is in the "
                "step, what else they do (printing, counting) is not done again"
            )


def _origin(hook: object) -> str:
    return str(getattr(hook, "__module__", None) or type(hook).__module__)


def _outside(traced: Traced) -> Iterator[str]:
    owner = traced.graph.owning_module
    for node in traced.graph.find_nodes(op="get_attr"):
        tensor = getattr(owner, str(node.target), None)
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            yield (
                f"a tensor of shape {tuple(tensor.shape)} that needs a gradient is no parameter of "
                "the model: it is read as a constant and not trained"
            )
