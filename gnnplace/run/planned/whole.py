"""Temporarily restores the whole parameters of a split model on every process.

Passes of a plan run recorded calls on parts of parameters. Between steps the leaves of the user's
model are outdated (ZeRO), freed (ZeRO 3), shards, or on "meta" (other stages). `gather_weights`
replaces them by whole parameters and buffers, as in a checkpoint, on every process; each is sent
from the first process that holds it. This takes the memory of the whole model, and changes of these
copies are lost. Otherwise calling such a model is refused (`refuse_parts`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from gnnplace.errors import InputError
from gnnplace.run.planned.local import Local, Marks, mark, unmark
from gnnplace.run.planned.parameters import Parameters
from gnnplace.run.planned.steps import refuse_joint_step
from gnnplace.torch_names import DisableTorchFunctionSubclass

Registered = dict[str, torch.Tensor | None]
WHOLE = "gnnplace_whole"
"""Attribute of modules whose weights are whole."""
IGNORED = "_ddp_params_and_buffers_to_ignore"
"""Attribute of a model that DistributedDataParallel reads before its parameters."""
REPLACED = WeakIdKeyDictionary()
"""Parameters in whose place others stand."""
CUT = WeakIdKeyDictionary()
"""Whether it is a part, by the parameters that are trained where a model is in parts."""
DROPPED = WeakIdKeyDictionary()
"""Whether a step has dropped a gradient that no optimizer took, by the parameters of plans."""
USED = WeakIdKeyDictionary()
"""Gradients of such parameters that an optimizer took."""
TAKEN: WeakKeyDictionary[torch.optim.Optimizer, list[torch.Tensor]] = (
    WeakKeyDictionary()
)
"""Marked tensors of optimizers that were tried: plain while they step."""


def is_whole(store: Parameters, model: nn.Module) -> bool:
    """Return whether a model has all parameters on this process, whole and as they are trained."""
    names = dict(model.named_parameters())
    return store.seat.mesh is None and all(
        name in store.held and store.held[name].learned is store.held[name].leaf
        for name in names
    )


def refuse_parts(model: nn.Module) -> None:
    """Have calls, states and copies of a model refused that has parts of its parameters.

    The hooks raise InputError, on every process alike, but within `gather_weights`.
    """

    def check(module: nn.Module, mend: str) -> None:
        if not vars(module).get(WHOLE, False):
            raise InputError(
                f"the model has parts of its weights on this process: {mend}"
            )

    def refuse(module: nn.Module, *_: object) -> None:
        check(
            module,
            "evaluate it by runner.evaluate(batch), save runner.state_dict(), load by "
            "runner.load_state_dict(state), or call it within `with runner.whole_weights():`",
        )

    def copied(memo: dict[int, Any]) -> nn.Module:
        refuse(model)
        vars(model).pop("__deepcopy__")
        try:
            return copy.deepcopy(model, memo)
        finally:
            vars(model)["__deepcopy__"] = copied

    def moved(module: nn.Module, *args: object, **options: object) -> nn.Module:
        check(module, "move it, or change its type, before apply")
        result: nn.Module = type(module)._apply(module, *args, **options)
        return result

    for module in model.modules():
        # The functions behind `to`, `cuda`, `half` and the like.
        vars(module)["_apply"] = partial(moved, module)
        module.register_forward_pre_hook(refuse)
        module.register_state_dict_pre_hook(refuse)
        module.register_load_state_dict_pre_hook(refuse)
    vars(model)["__deepcopy__"] = copied
    vars(model)[IGNORED] = _Wrapped()


class _Wrapped:
    """Refuses DistributedDataParallel, which asks a model first which tensors it may ignore."""

    def __iter__(self) -> Iterator[str]:
        raise InputError(
            "the model has parts of its weights on this process: leave DistributedDataParallel "
            "out; runner.step exchanges gradients"
        )


def refuse_again(model: nn.Module) -> None:
    """Refuse a model that has parts of its weights already."""
    if "__deepcopy__" in vars(model):
        raise InputError(
            "apply: the model has parts of its weights already; build it anew"
        )


def refuse_replaced_parameters(parameter: nn.Parameter) -> None:
    """Have optimizers refused that update a parameter for which another one stands now.

    It gets no gradients any more, and its optimizer would train nothing, without a word.
    """
    _watch()
    REPLACED[parameter] = None


@cache
def _watch() -> None:
    """Have every optimizer of this process checked before its steps."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Refuse a step that is not the model's; its tensors are plain within it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(p in REPLACED for p in parameters):
        raise InputError(
            "optimizer: it updates parameters of the model in whose place the plan has put others; "
            "make it of runner.parameters(), or after apply of a split model's own"
        )
    with DisableTorchFunctionSubclass():
        if any(
            DROPPED.get(p, False) and p.grad is not None and p.grad.any()
            for p in parameters
        ):
            raise InputError(
                "optimizer: gradients of an earlier runner.step are lost, since those of several "
                "steps do not add up: take a plan of a larger batch, which has more micro-batches, "
                "or call optimizer.zero_grad() where they are not wanted"
            )
    local = [p for p in parameters if p in CUT]
    if local and optimizer not in TAKEN:
        refuse_joint_step(optimizer, any(CUT[p] for p in local))
    if local:
        state = [x for marked in optimizer.state.values() for x in marked.values()]
        marked = [p for p in local if type(p) is Local]
        TAKEN[optimizer] = marked + [p.grad for p in marked if p.grad is not None]
        for tensor in (*TAKEN[optimizer], *state):
            unmark(tensor)


def _after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    USED.update(
        {p.grad: None for p in parameters if p in DROPPED and p.grad is not None}
    )
    for tensor in TAKEN.get(optimizer, ()):
        mark(tensor, Local)


def note_dropped(store: Parameters) -> None:
    """Note whose gradients a step drops though no optimizer took them, as in accumulation.

    Optimizers that find some of a later step in their place are refused.
    """
    for local in store.held.values():
        gradient = local.learned.grad
        DROPPED[local.learned] = (
            gradient is not None and gradient not in USED and bool(gradient.any())
        )


def make_marks(store: Parameters, model: nn.Module) -> Marks:
    """Return the marks that refuse numbers of a model's parameters unless all are here, whole."""
    _watch()
    named = dict(model.named_parameters())
    complete = store.seat.mesh is None and not any(h.split for h in store.held.values())
    parts = (
        ()
        if complete and named.keys() <= store.held.keys()
        else tuple(store.held.values())
    )
    for part in parts:
        CUT[part.learned] = part.split or any(place.cuts for place in part.home)
    trained = {name: part.learned for name, part in store.held.items()}
    pairs = ((named[name], trained.get(name)) for name in named)
    return Marks(
        tuple(part.learned for part in parts),
        tuple(pair for pair in pairs if pair[0] is not pair[1]),
    )


@contextmanager
def gather_weights(
    model: nn.Module,
    store: Parameters,
    holders: Mapping[str, tuple[int, ...]],
    keepers: Mapping[str, tuple[int, ...]],
    marks: Marks,
) -> Iterator[None]:
    """Have whole parameters and buffers in a model; all processes enter and leave together.

    Args:
        model: the user's.
        store: what this process has of the parameters.
        holders: ranks that hold each parameter.
        keepers: ranks that keep each buffer up to date.
        marks: The marks of the parts.
    """
    # 1. Gather: the first rank that holds a tensor sends it to all; all processes take part in
    # the same order.
    whole_tensors: dict[int, torch.Tensor] = {}
    with torch.no_grad(), marks.plain():
        for name, parameter in model.named_parameters():
            first = holders[name][0]
            if store.seat.rank == first:
                local = store.held[name]
                data = (
                    store.whole(local, local.learned.detach())
                    .to(parameter.dtype)
                    .contiguous()
                )
            else:
                shape, device = store.whole_shapes[name], store.seat.device
                data = torch.empty(shape, dtype=parameter.dtype, device=device)
            data = _broadcast(data, store, first)
            whole_tensors[id(parameter)] = nn.Parameter(data, parameter.requires_grad)
        for name, buffer in model.named_buffers():
            sent_buffer = _broadcast(
                buffer.detach().clone(), store, keepers.get(name, (0,))[0]
            )
            whole_tensors[id(buffer)] = sent_buffer
    # 2. Replace: the modules' tables name whole tensors where they named local parts.
    tables: list[Registered] = [
        table  # type: ignore[misc]
        for module in model.modules()
        for table in (module._parameters, module._buffers)
    ]
    saved_tables = [dict(table) for table in tables]
    for table in tables:
        table.update(
            {key: whole_tensors[id(x)] for key, x in table.items() if x is not None}
        )
    for module in model.modules():
        vars(module)[WHOLE] = True
    # 3. Restore: training goes on with the parts, also after an error of the caller.
    try:
        yield
    finally:
        for module in model.modules():
            vars(module).pop(WHOLE, None)
        for table, old in zip(tables, saved_tables, strict=True):
            table.update(old)


def _broadcast(data: torch.Tensor, store: Parameters, rank: int) -> torch.Tensor:
    """Broadcast a tensor of a rank's first process to all."""
    if store.seat.seats.count > 1:
        dist.broadcast(data, store.seat.seats.process(rank, 0, 0))
    return data
