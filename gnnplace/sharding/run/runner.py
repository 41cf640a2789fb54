"""Runs a split model's calls on one device of the mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from gnnplace.sharding.captured.calls import (
    BUFFER,
    CONSTANT,
    INPUT,
    PARAMETER,
    CallGraph,
    CallRef,
    LayerCall,
)
from gnnplace.sharding.captured.layout import (
    PARTIAL,
    REPLICATED,
    Configuration,
    Layout,
    gradient_layout,
    made_layout,
    read_layout,
)
from gnnplace.sharding.rules.rule import Rule, Share
from gnnplace.sharding.run.gradients import Gradients
from gnnplace.sharding.run.move import moved


@dataclass(frozen=True, eq=False)
class DeviceShare:
    """What one device knows about its part of a call; see ``sharding.rules.rule.Share``."""

    mesh: DeviceMesh
    configuration: Configuration
    fullest: float = 1.0

    def parts(self, label: str) -> int:
        """Parts that the label is split into."""
        count = 1
        for dim, chosen in enumerate(self.configuration):
            count *= self.mesh.size(dim) if chosen == label else 1
        return count

    def index(self, label: str) -> int:
        """Which of them this device has: the mesh's first dimension counts the most."""
        position = 0
        for dim, chosen in enumerate(self.configuration):
            if chosen == label:
                position = position * self.mesh.size(dim) + self.mesh.get_local_rank(dim)
        return position

    def total(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The sum over all parts; differentiable."""
        sums = tuple(PARTIAL if c == label else REPLICATED for c in self.configuration)
        whole = (REPLICATED,) * len(sums)
        return moved(tensor, self.mesh, sums, whole, sums)

    def largest(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The largest of all parts; without a gradient."""
        found = tensor.detach().clone()
        for dim, chosen in enumerate(self.configuration):
            if chosen == label:
                dist.all_reduce(found, dist.ReduceOp.MAX, group=self.mesh.get_group(dim))
        return found

    def sent(
        self, rows: torch.Tensor, counts: Sequence[int], received: Sequence[int], label: str
    ) -> torch.Tensor:
        """Rows that all parts of the label send here; differentiable.

        Raises:
            ValueError: several dimensions of the mesh split the label.
        """
        (dim,) = (k for k, chosen in enumerate(self.configuration) if chosen == label)
        found: torch.Tensor = _Rows.apply(rows, self.mesh.get_group(dim), counts, received)
        return found


class _Rows(torch.autograd.Function):
    """An all-to-all of rows; gradients go the way back."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, group: Any, counts: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """The rows that come. [sum of received, ...]"""
        ctx.back = group, received, counts
        made = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(made, rows.contiguous(), [*received], [*counts], group=group)
        return made

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        """The gradients of the rows that went."""
        return _Rows.apply(given[0], *ctx.back), None, None, None


@dataclass(frozen=True, eq=False)
class PlacedCall:
    """A call with its layouts.

    Attributes:
        reads: Value, layout and layout of the gradient, of each tensor read.
        results: Value and layout of each tensor made.
        done: Values that nothing later needs.
    """

    call: LayerCall
    rule: Rule
    share: DeviceShare
    reads: tuple[tuple[int, Layout, Layout], ...]
    results: tuple[tuple[int, Layout], ...]
    done: tuple[int, ...]

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Computes this device's part."""
        return run_part(self.call, self.rule, self.share, tensors)


def run_part(
    call: LayerCall, rule: Rule, share: Share, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Computes a device's part of a call: the tensors that it makes, or changes."""
    rest, run = iter(tensors), rule.run
    return call.made(
        lambda value: next(rest),
        None if run is None else lambda call, args, kwargs: run(call, args, kwargs, share),
    )


def stages(
    graph: CallGraph, rules: Sequence[Rule], split: Sequence[Configuration], mesh: DeviceMesh
) -> tuple[PlacedCall, ...]:
    """Every call with its layouts."""
    last: dict[int, int] = {}
    for i, call in enumerate(graph.calls):
        last.update(dict.fromkeys((*call.reads, *call.results), i))
    kept = {x.value for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef)}
    made = []
    for i, (call, rule, chosen) in enumerate(zip(graph.calls, rules, split, strict=True)):
        reads = zip(call.reads, rule.reads, strict=True)
        results = zip(call.results, rule.results, strict=True)
        made.append(
            PlacedCall(
                call,
                rule,
                DeviceShare(mesh, tuple(chosen)),
                tuple((v, read_layout(a, chosen), gradient_layout(a, chosen)) for v, a in reads),
                tuple((v, made_layout(a, chosen)) for v, a in results),
                tuple(v for v, at in last.items() if at == i and v not in kept),
            )
        )
    return tuple(made)


@dataclass(eq=False)
class ShardRunner:
    """A traced model's forward pass on one device.

    Attributes:
        graph: The calls of the model.
        stages: The same with layouts.
        mesh: The mesh of all devices.
        homes: Layout of every parameter, by name.
        model: Holds parameters (DTensors) and buffers.
    """

    graph: CallGraph
    stages: tuple[PlacedCall, ...]
    mesh: DeviceMesh
    homes: dict[str, Layout]
    model: nn.Module
    _state: dict[int, Callable[[], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, value in enumerate(self.graph.values):
            if value.source in (PARAMETER, BUFFER):
                path, _, name = value.name.rpartition(".")
                self._state[index] = _getter(self.model, path, name)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """What the model returns, whole on every device.

        Args:
            inputs: The same whole tensors on every device.
        """
        state = _ForwardValues(self, Gradients(self.mesh))
        whole = (REPLICATED,) * self.mesh.ndim
        for index, info in enumerate(self.graph.values):
            if info.source == INPUT:
                state.put(index, inputs[int(info.name)], whole)
            elif info.source == CONSTANT and index in self.graph.constants:
                state.put(index, self.graph.constants[index], whole)
        for stage in self.stages:
            tensors = [state.get(*read) for read in stage.reads]
            if stage.call.inplace and state.moved(stage.reads[0][0], tensors[0]):
                tensors[0] = tensors[0].clone()  # others may read what was moved
            pairs = zip(stage.run(tensors), stage.results, strict=True)
            for tensor, (value, layout) in pairs:
                state.put(value, tensor, layout)
            state.drop(stage.done)

        def output(leaf: Any) -> Any:
            return state.get(leaf.value, whole, whole) if isinstance(leaf, CallRef) else leaf

        return pytree.tree_map(output, self.graph.output)


def _getter(model: nn.Module, path: str, name: str) -> Callable[[], Any]:
    owner = model.get_submodule(path)
    return lambda: getattr(owner, name)


@dataclass(eq=False)
class _ForwardValues:
    """Values of one forward pass."""

    runner: ShardRunner
    gradients: Gradients
    made: dict[int, tuple[torch.Tensor, Layout]] = field(default_factory=dict)
    read: dict[int, dict[tuple[Layout, Layout], torch.Tensor]] = field(default_factory=dict)

    def put(self, value: int, tensor: torch.Tensor, layout: Layout) -> None:
        self.made[value] = (tensor, layout)

    def get(self, value: int, read: Layout, gradient: Layout) -> torch.Tensor:
        """A value as a reader wants it; readers that want the same share it."""
        known = self.read.setdefault(value, {})
        if (read, gradient) not in known:
            known[read, gradient] = self._fetch(value, read, gradient)
        return known[read, gradient]

    def _fetch(self, value: int, read: Layout, gradient: Layout) -> torch.Tensor:
        runner = self.runner
        info = runner.graph.values[value]
        if info.source == PARAMETER:
            parameter = runner._state[value]()
            return self.gradients.leaf(parameter, runner.homes[info.name], read, gradient)
        if info.source == BUFFER:
            tensor, layout = runner._state[value](), (REPLICATED,) * runner.mesh.ndim
        else:
            tensor, layout = self.made[value]
        return moved(tensor, runner.mesh, layout, read, gradient)

    def moved(self, value: int, tensor: torch.Tensor) -> bool:
        """Whether a tensor is not the one that was made."""
        return value not in self.made or self.made[value][0] is not tensor

    def drop(self, values: Sequence[int]) -> None:
        for value in values:
            self.made.pop(value, None)
            self.read.pop(value, None)
