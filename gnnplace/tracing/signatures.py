"""Schemas of ops: what they write, share, ask for and draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from gnnplace.torch_names import OpOverload

CHANCES = ("dropout_p", "dropout", "p")
MODES = ("train", "training")
"""Arguments with which an op that may draw does not: where they are 0 or False."""
TORCH = (
    "aten",
    "prim",
    "prims",
    "mkldnn",
    "quantized",
    "torchvision",
    "_c10d_functional",
    "c10d",
    "gnnplace",
)
"""Namespaces of ops whose schema says all that they do."""
ASKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Signature:
    """The schema of an op.

    Attributes:
        written: Positions of the arguments that it writes.
        shares: Whether a result may share memory with an argument.
        name: Its name, the same for its twin in place.
        plain: Its name without namespace.
        seeded: Whether it is tagged as random; a choice among kernels is none.
        inquires: Whether it only asks about a tensor.
        foreign: Whether it is a custom op.
        asks: Whether its result depends on numbers that a recording does not have.
        norm: Whether it is a batch norm, which may write its running averages.
        mask: Position of the argument of a backward op that says which results it makes.
    """

    def __init__(self, func: OpOverload) -> None:
        written: list[int] = []
        self.mask: int | None = None
        for position, argument in enumerate(func._schema.arguments):
            if argument.is_write:
                written.append(position)
            if self.mask is None and str(argument.type) == "List[bool]":
                self.mask = position
        self.written = tuple(written)
        self.shares = any(r.alias_info is not None for r in func._schema.returns)
        self.name = func._schema.name.removesuffix("_")
        self.plain = func._schema.name.split("::")[1]
        self.seeded = (
            torch.Tag.nondeterministic_seeded in func.tags
            and "choice" not in func.__name__
        )
        self.inquires = func.namespace == "prim"
        self.foreign = func.namespace not in TORCH
        self.asks = bool(ASKS.intersection(func.tags))
        self.norm = "batch_norm" in self.plain and "backward" not in self.plain

    def argument_mask(self, args: tuple[Any, ...]) -> list[bool] | None:
        """Return the argument that says which results a backward op makes; None if it has none."""
        if self.mask is None or len(args) <= self.mask:
            return None
        mask: list[bool] = args[self.mask]
        return mask


@cache
def get_signature(func: OpOverload) -> Signature:
    """Return the signature of an op."""
    return Signature(func)


def may_draw(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of an op draws random numbers, or may: of custom ops nobody knows."""
    signature = get_signature(func)
    if not signature.seeded:
        return signature.foreign
    parameters = func._schema.arguments
    values: dict[str, Any] = {}
    for position, parameter in enumerate(parameters):
        is_given = position < len(args)
        values[parameter.name] = args[position] if is_given else parameter.default_value
    values |= kwargs
    for name in CHANCES:
        if not values.get(name, 1):
            return False
    return all(values.get(name) is not False for name in MODES)


def is_view(target: OpOverload) -> bool:
    """Return whether the overload returns memory of an argument."""
    return any(r.alias_info is not None for r in target._schema.returns)


def is_random(
    target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Return whether the op draws random numbers; with a dropout rate of 0 it does not."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    parameters = target._schema.arguments
    values = dict(zip((parameter.name for parameter in parameters), args, strict=False))
    values.update(kwargs)
    rates = [
        parameter
        for parameter in parameters
        if parameter.name in ("dropout_p", "dropout")
    ]
    return not rates or any(
        values.get(rate.name, rate.default_value) != 0 for rate in rates
    )
