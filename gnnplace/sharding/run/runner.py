"""A call of a split model on one device of the mesh: its layouts, and its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.sharding.captured.layout import (
    PARTIAL,
    REPLICATED,
    Configuration,
    Layout,
    gradient_layout,
    made_layout,
    read_layout,
)
from gnnplace.sharding.run.move import moved
from gnnplace.torch_names import pytree
from gnnplace.tracing import CallGraph, CallRef, LayerCall, Rule, Share


@dataclass(frozen=True, eq=False)
class DeviceShare:
    """What one device knows about its part of a call; see ``tracing.rules.rule.Share``."""

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
