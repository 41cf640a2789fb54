"""Identical layers: a proof runs two layers of each kind, and stand-ins replace the others.

Siblings of one class are identical if everything that their code depends on is: names, classes and
flags of submodules, geometry and flags of parameters and buffers, and attributes. Attributes that
differ, such as `layer_idx`, must not have been read. There must be no hooks and no memory shared
with other modules. The recorder also compares their recorded calls. Then a proof for the first and
the last layer holds for those between, which run the same code on the same state. If a step leaves
state in attributes, globals or classes, no layer is left out.

A layer that is left out returns values of the recorded geometry that depend on all of its inputs,
forward and backward, both in the step and in its recording (`StandIn`). O(modules + attributes).
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from gnnplace.torch_names import (
    FunctionContext,
    get_current_dispatch_mode_stack,
    pytree,
)
from gnnplace.tracing.guards.attributes import OWN, content
from gnnplace.tracing.guards.fingerprint import HIDDEN
from gnnplace.tracing.guards.numbering import Numbering
from gnnplace.tracing.tensors import DATA, get_storage_key

NUMBERED = 2
"""Layers of each kind that are numbered: the first and the last."""
HELD = (list, dict, set, deque)
Description = list[Any]
"""Facts of a module that are equal for modules that are alike."""


class Geometry(NamedTuple):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    learns: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """Return the geometry of a strided tensor."""
        device = getattr(tensor, "fake_device", None) or tensor.device
        return cls(
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            device,
            tensor.requires_grad,
        )


@dataclass(frozen=True)
class ArgumentLeaf:
    """A tensor among the arguments of a call, by its position among their leaves."""

    position: int


@dataclass(frozen=True)
class LayerResult:
    """A tensor that a layer makes, by its position among these."""

    position: int


@dataclass(frozen=True)
class StandIn:
    """A stand-in for a layer that is left out; called as the layer is.

    Attributes:
        name: name of the layer.
        reads: positions, among the leaves of its arguments, of the tensors that it reads.
        results: geometry of the tensors that it makes.
        output: what it returns, `ArgumentLeaf` and `LayerResult` for tensors.
    """

    name: str
    reads: tuple[int, ...]
    results: tuple[Geometry, ...]
    output: Any

    def __call__(self, *args: object, **options: object) -> object:
        """Return the output of the layer, of the right geometry."""
        leaves = pytree.tree_leaves((args, options))
        tensors = self.tensors([leaves[i] for i in self.reads])

        def fill(leaf: object) -> object:
            if isinstance(leaf, LayerResult):
                return tensors[leaf.position]
            if isinstance(leaf, ArgumentLeaf):
                return leaves[leaf.position]
            return leaf

        return pytree.tree_map(fill, self.output)

    def tensors(self, read: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the tensors that the layer makes, in the order of `made`."""
        # An input that requires a gradient, because the layer's parameters do.
        anchor = torch.empty((), requires_grad=True)
        tensors: tuple[torch.Tensor, ...] = _Layer.apply(self, anchor, *read)
        return tensors


class _LayerContext(FunctionContext):
    """The state that a layer keeps for its backward pass.

    Attributes:
        read: The tensors that it read.
        number: What they make, as `Numbering.number_made` counts it.
    """

    read: tuple[torch.Tensor, ...]
    number: int


class _Layer(torch.autograd.Function):
    """One op forward and one backward in place of a layer's own."""

    @staticmethod
    def forward(
        ctx: _LayerContext, stand: StandIn, anchor: torch.Tensor, *read: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        results = [
            torch.empty_strided(g.shape, g.stride, dtype=g.dtype, device=g.device)
            for g in stand.results
        ]
        ctx.read = read
        ctx.number = _numbering().number_made(stand.name, read, results)
        pairs = zip(results, stand.results, strict=True)
        ctx.mark_non_differentiable(
            *(x for x, geometry in pairs if not geometry.learns)
        )
        return tuple(results)

    @staticmethod
    def backward(
        ctx: _LayerContext, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        pairs = zip(ctx.read, ctx.needs_input_grad[2:], strict=True)
        results = [
            torch.empty_like(x) if needs_gradient else None
            for x, needs_gradient in pairs
        ]
        _numbering().number_made(
            ctx.number, gradients, [x for x in results if x is not None]
        )
        return (None, None, *results)


def _numbering() -> Numbering:
    """Return the numbering that runs now."""
    stack = get_current_dispatch_mode_stack()
    return next(mode for mode in stack if isinstance(mode, Numbering))


@contextmanager
def replace_by_stand_ins(
    root: nn.Module, stands: Mapping[str, StandIn]
) -> Iterator[None]:
    """Make modules shells of their class and attributes that call their stand-ins, within."""
    layers: list[tuple[dict[str, nn.Module | None], str, nn.Module | None]] = []
    for path in stands:
        parent, _, key = path.rpartition(".")
        table = root.get_submodule(parent)._modules
        layers.append((table, key, table[key]))
    try:
        for (table, key, module), stand in zip(layers, stands.values(), strict=True):
            shell = object.__new__(type(module))
            empty: dict[str, Any] = {name: {} for name in OWN}
            shell.__dict__.update({**vars(module), **empty, "forward": stand})
            table[key] = shell
        yield
    finally:
        for table, key, module in layers:
            table[key] = module


def find_siblings(root: nn.Module) -> list[list[str]]:
    """Return paths of children, more than `NUMBERED` of one class; outer ones first."""
    groups = []
    for path, module in root.named_modules():
        kinds: dict[type, list[str]] = {}
        for name, child in module._modules.items():
            kinds.setdefault(type(child), []).append(f"{path}.{name}" if path else name)
        for paths in kinds.values():
            if len(paths) > NUMBERED:
                groups.append(paths)
    return groups


def count_storages(root: nn.Module) -> Counter[int]:
    """Return how many places of a model's tables each storage stands in."""
    storages: list[int] = []
    for module in root.modules():
        for _, _, tensor in _tensors(module):
            storages.append(get_storage_key(tensor))
    return Counter(storages)


def describe_module(
    module: nn.Module, read: set[tuple[int, str]], shared: Counter[int]
) -> Description:
    """Return what a module computes with, so that two that compute alike have it equal.

    Args:
        module: any.
        read: id of module and name of attributes that code has read.
        shared: `count_storages` of the model.
    """
    positions: dict[int, int] = {}
    facts: Description = []
    local = count_storages(module)
    for name, part in module.named_modules():
        children = tuple((key, child is None) for key, child in part._modules.items())
        facts += [name, type(part), children]
        for key, value in sorted(vars(part).items()):
            is_read = key in HIDDEN or key == "training" or (id(part), key) in read
            if is_read and key not in OWN:
                facts += [key, _plain(value)]
        for table, key, tensor in _tensors(part):
            storage = get_storage_key(tensor)
            position = positions.setdefault(storage, len(positions))
            facts += [table, key, type(tensor), tensor.layout, position, tensor.is_leaf]
            facts.append(_plain(vars(tensor)))
            # A tensor that others share, or that has hooks, is alike no other.
            is_alone = local[storage] == shared[storage]
            accumulate_hooks = getattr(tensor, "_post_accumulate_grad_hooks", None)
            has_hooks = bool(tensor._backward_hooks or accumulate_hooks)
            facts.append(
                Geometry.of(tensor) if is_alone and not has_hooks else object()
            )
    return facts


def _tensors(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield table, name and tensor of the parameters and buffers of a module itself."""
    for key in ("_parameters", "_buffers"):
        yield from (
            (key, n, t) for n, t in getattr(module, key).items() if t is not None
        )


def _plain(value: object) -> Hashable:
    """Return what stands for an attribute: data by type and value, all else by identity."""
    if isinstance(value, DATA):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(_plain(x) for x in value)
    if isinstance(value, dict):
        return type(value), tuple((_plain(k), _plain(x)) for k, x in value.items())
    if type(value) is partial:
        return partial, _plain(value.func), _plain(value.args), _plain(value.keywords)
    if type(value) is set:
        return (set, frozenset(map(_plain, value)))
    return id(value)


def describe_surroundings(root: nn.Module) -> Description:
    """Return plain data in classes of modules and in the globals that their code sees."""
    kinds: set[type] = set()
    files: set[ModuleType] = set()
    for module in root.modules():
        for kind in type(module).__mro__:
            if kind.__module__.startswith("torch."):
                continue
            kinds.add(kind)
            if kind.__module__ in sys.modules:
                files.add(sys.modules[kind.__module__])
    facts: Description = []
    for owner in (*kinds - {object}, *files):
        for key, value in vars(owner).items():
            if isinstance(value, DATA) or type(value) in HELD:
                facts.append(
                    (owner, key, value if isinstance(value, DATA) else content(value))
                )
    return facts
