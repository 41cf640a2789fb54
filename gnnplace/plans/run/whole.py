"""A model whose parameters are parts on many processes, whole on each for a while.

Passes of a plan run recorded calls on parts; between steps the user's model itself has leaves that
are stale (ZeRO), freed (ZeRO 3), parts (shards) or gone to "meta" (other stages). `whole_weights`
puts whole parameters and buffers, as a checkpoint has them, in their place on every process: each
goes from the first process that holds it to all. It takes the memory of the whole model, and what
is done to these copies is lost. Outside of it, calling such a model is refused (`refuse_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gnnplace.errors import InputError
from gnnplace.plans.run.parameters import Parameters

Registered = dict[str, torch.Tensor | None]


def is_whole(store: Parameters, model: nn.Module) -> bool:
    """Whether a model has all its parameters on this process, whole and as the optimizer left."""
    names = dict(model.named_parameters())
    return store.seat.mesh is None and all(
        name in store.held and store.held[name].learned is store.held[name].leaf for name in names
    )


def refuse_parts(model: nn.Module) -> None:
    """Has calls of a model that has parts of its parameters refused, but within `whole_weights`.

    The hook raises InputError, on every process alike.
    """

    def refuse(module: nn.Module, args: Any) -> None:
        if not vars(module).get("gnnplace_whole", False):
            raise InputError(
                "the model has parts of its weights on this process: evaluate it by "
                "runner.evaluate(batch), or call it within `with runner.whole_weights():`"
            )

    model.register_forward_pre_hook(refuse)


@contextmanager
def whole_weights(
    model: nn.Module,
    store: Parameters,
    holders: Mapping[str, tuple[int, ...]],
    keepers: Mapping[str, tuple[int, ...]],
) -> Iterator[None]:
    """Whole parameters and buffers in a model; all processes enter and leave together.

    Args:
        model: the user's.
        store: what this process has of the parameters.
        holders: ranks that hold each parameter.
        keepers: ranks that keep each buffer up to date.
    """
    made: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            made[id(parameter)] = _parameter(name, parameter, store, holders[name])
        for name, buffer in model.named_buffers():
            found = _sent(buffer.detach().clone(), store, keepers.get(name, (0,))[0])
            made[id(buffer)] = found
    tables: list[Registered] = [
        table  # type: ignore[misc]
        for module in model.modules()
        for table in (module._parameters, module._buffers)
    ]
    before = [dict(table) for table in tables]
    for table in tables:
        table.update({key: made[id(x)] for key, x in table.items() if x is not None})
    vars(model)["gnnplace_whole"] = True
    try:
        yield
    finally:
        vars(model).pop("gnnplace_whole")
        for table, old in zip(tables, before, strict=True):
            table.update(old)


def _parameter(
    name: str, parameter: nn.Parameter, store: Parameters, ranks: tuple[int, ...]
) -> nn.Parameter:
    """A whole parameter on every process."""
    if store.seat.rank == ranks[0]:
        held = store.held[name]
        data = store.whole(held, held.learned.detach()).to(parameter.dtype).contiguous()
    else:
        data = torch.empty(
            store.whole_shapes[name], dtype=parameter.dtype, device=store.seat.device
        )
    return nn.Parameter(_sent(data, store, ranks[0]), parameter.requires_grad)


def _sent(data: torch.Tensor, store: Parameters, rank: int) -> torch.Tensor:
    """A tensor of a rank's first process, on all."""
    if store.seat.seats.count > 1:
        dist.broadcast(data, store.seat.seats.process(rank, 0, 0))
    return data
