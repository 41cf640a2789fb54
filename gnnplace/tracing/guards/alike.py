"""Layers that compute alike: a proof numbers two of each kind, and one value stands for the others.

Siblings of one class are alike where all that their code goes by is: names, classes and flags of
their submodules, geometry and flags of parameters and buffers, attributes (those that differ must
not have been read, such as `layer_idx`), no hooks, no memory shared with others. What is so of
their recorded calls is for the recorder to say. Then what is proven of the first and the last holds
for those between, by the same code on the same things; and where that is not sure, it is not said:
state that a step leaves in attributes, globals or classes excludes all.

A layer that is left out makes values of the recorded geometry from what it read, forward and
backward, in the step and in its recording alike (`StandIn`). O(modules + attributes).
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from gnnplace.torch_names import get_current_dispatch_mode_stack, pytree
from gnnplace.tracing.guards.attributes import DATA, OWN, content
from gnnplace.tracing.guards.fingerprint import HIDDEN
from gnnplace.tracing.guards.numbering import Numbering, storage_of

NUMBERED = 2
"""Layers of each kind that are numbered: the first and the last."""
HELD = (list, dict, set, deque)
Description = list[Any]
"""What two modules that are alike have equal."""


class Geometry(NamedTuple):
    """What a tensor is without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    learns: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """That of a strided tensor."""
        device = getattr(tensor, "fake_device", None) or tensor.device
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, device, tensor.requires_grad)


@dataclass(frozen=True)
class Given:
    """The tensor among the arguments of a call, by its position among their leaves."""

    position: int


@dataclass(frozen=True)
class Made:
    """A tensor that a layer makes, by its position among these."""

    position: int


@dataclass(frozen=True)
class StandIn:
    """A layer that is left out; called as it is.

    Attributes:
        name: of the layer.
        reads: positions, among the leaves of its arguments, of the tensors that it reads.
        made: geometry of the tensors that it makes.
        output: what it returns, `Given` and `Made` for tensors.
    """

    name: str
    reads: tuple[int, ...]
    made: tuple[Geometry, ...]
    output: Any

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The output of the layer, of the right geometry."""
        leaves = pytree.tree_leaves((args, options))
        made = self.tensors([leaves[i] for i in self.reads])

        def filled(leaf: Any) -> Any:
            if isinstance(leaf, Made):
                return made[leaf.position]
            return leaves[leaf.position] if isinstance(leaf, Given) else leaf

        return pytree.tree_map(filled, self.output)

    def tensors(self, read: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What the layer makes of the tensors that it reads, in the order of `made`."""
        anchor = torch.empty((), requires_grad=True)  # gradients of its parameters are asked for
        found: tuple[torch.Tensor, ...] = _Layer.apply(self, anchor, *read)
        return found


class _Layer(torch.autograd.Function):
    """One op forward and one backward in place of a layer's own."""

    @staticmethod
    def forward(ctx: Any, stand: StandIn, anchor: torch.Tensor, *read: torch.Tensor) -> Any:
        made = [
            torch.empty_strided(g.shape, g.stride, dtype=g.dtype, device=g.device)
            for g in stand.made
        ]
        ctx.read, ctx.number = read, _numbering().made_by(stand.name, read, made)
        still = [x for x, g in zip(made, stand.made, strict=True) if not g.learns]
        ctx.mark_non_differentiable(*still)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        asked = ctx.needs_input_grad[2:]
        found = [torch.empty_like(x) if need else None
                 for x, need in zip(ctx.read, asked, strict=True)]  # fmt: skip
        _numbering().made_by(ctx.number, gradients, [x for x in found if x is not None])
        return (None, None, *found)


def _numbering() -> Numbering:
    """The numbering that runs now."""
    stack = get_current_dispatch_mode_stack()
    return next(mode for mode in stack if isinstance(mode, Numbering))


@contextmanager
def left_out(root: nn.Module, stands: Mapping[str, StandIn]) -> Iterator[None]:
    """Within it, modules are shells of their class and attributes that call their stand-ins."""
    tables = [(root.get_submodule(path.rpartition(".")[0])._modules, path) for path in stands]
    own = [(table, path.rpartition(".")[2], table[path.rpartition(".")[2]])
           for table, path in tables]  # fmt: skip
    try:
        for (table, key, module), stand in zip(own, stands.values(), strict=True):
            shell = object.__new__(type(module))
            empty: dict[str, Any] = {name: {} for name in OWN}
            shell.__dict__.update({**vars(module), **empty, "forward": stand})
            table[key] = shell
        yield
    finally:
        for table, key, module in own:
            table[key] = module


def siblings(root: nn.Module) -> list[list[str]]:
    """Paths of children that have one class and more than `NUMBERED` of it; outer ones first."""
    found = []
    for path, module in root.named_modules():
        kinds: dict[type, list[str]] = {}
        for name, child in module._modules.items():
            kinds.setdefault(type(child), []).append(f"{path}.{name}" if path else name)
        found += [paths for paths in kinds.values() if len(paths) > NUMBERED]
    return found


def memory(root: nn.Module) -> Counter[int]:
    """How many places of a model's tables each storage stands in."""
    return Counter(storage_of(t) for m in root.modules() for _, _, t in _tensors(m))


def description(module: nn.Module, read: set[tuple[int, str]], held: Counter[int]) -> Description:
    """What a module computes with, so that two that compute alike have it equal.

    Args:
        module: any.
        read: id of module and name of attributes that code has read.
        held: `memory` of the model.
    """
    own: dict[int, int] = {}
    found: Description = []
    local = memory(module)
    for name, part in module.named_modules():
        names = tuple((key, child is None) for key, child in part._modules.items())
        found += [name, type(part), names]
        for key, value in sorted(vars(part).items()):
            if key in HIDDEN or key == "training" or (id(part), key) in read:
                found += [] if key in OWN else [key, _plain(value)]
        for key, t_name, t in _tensors(part):
            place = own.setdefault(storage_of(t), len(own))
            alone = local[storage_of(t)] == held[storage_of(t)]
            bare = not t._backward_hooks and not getattr(t, "_post_accumulate_grad_hooks", None)
            found += [key, t_name, type(t), t.layout, place, t.is_leaf, _plain(vars(t))]
            found += [Geometry.of(t) if alone and bare else object()]
    return found


def _tensors(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    for key in ("_parameters", "_buffers"):
        yield from ((key, n, t) for n, t in getattr(module, key).items() if t is not None)


def _plain(value: Any) -> Hashable:
    """What stands for an attribute: data by type and value, all else by identity."""
    if isinstance(value, DATA):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(_plain(x) for x in value)
    if isinstance(value, dict):
        return type(value), tuple((_plain(k), _plain(x)) for k, x in value.items())
    if type(value) is partial:
        return partial, _plain(value.func), _plain(value.args), _plain(value.keywords)
    return (set, frozenset(map(_plain, value))) if type(value) is set else id(value)


def surroundings(root: nn.Module) -> Description:
    """Plain data in classes of modules and in the globals that their code sees, as it is now."""
    kinds = {k for m in root.modules() for k in type(m).__mro__ if k.__module__[:6] != "torch."}
    files = {sys.modules[k.__module__] for k in kinds if k.__module__ in sys.modules}
    found: Description = []
    for owner in (*kinds - {object}, *files):
        for key, value in vars(owner).items():
            if isinstance(value, DATA) or type(value) in HELD:
                found.append((owner, key, value if isinstance(value, DATA) else content(value)))
    return found
