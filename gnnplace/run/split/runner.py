"""A call of a split model on one device of the mesh: its layouts, and its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.run.split.move import move_shard
from gnnplace.sharding import (
    PARTIAL,
    REPLICATED,
    Configuration,
    Layout,
    get_result_layout,
    gradient_layout,
    read_layout,
)
from gnnplace.torch_names import pytree
from gnnplace.tracing import CallGraph, CallRef, LayerCall, Rule, Share


@dataclass(frozen=True, eq=False)
class DeviceShare:
    """One device's part of a call; see ``tracing.rules.rule.Share``."""

    mesh: DeviceMesh
    configuration: Configuration
    fullest: float = 1.0

    def parts(self, label: str) -> int:
        """Return the number of parts that the label is split into."""
        count = 1
        for dim, split_label in enumerate(self.configuration):
            count *= self.mesh.size(dim) if split_label == label else 1
        return count

    def index(self, label: str) -> int:
        """Return which of them this device has: the mesh's first dimension counts the most."""
        position = 0
        for dim, split_label in enumerate(self.configuration):
            if split_label == label:
                position = position * self.mesh.size(dim) + self.mesh.get_local_rank(
                    dim
                )
        return position

    def total(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the sum over all parts; differentiable."""
        sums = tuple(PARTIAL if c == label else REPLICATED for c in self.configuration)
        replicated = (REPLICATED,) * len(sums)
        return move_shard(
            local=tensor,
            mesh=self.mesh,
            before=sums,
            after=replicated,
            gradient=sums,
        )

    def largest(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the largest of all parts; without a gradient."""
        maximum = tensor.detach().clone()
        for dim, split_label in enumerate(self.configuration):
            if split_label == label:
                dist.all_reduce(
                    maximum, dist.ReduceOp.MAX, group=self.mesh.get_group(dim)
                )
        return maximum

    def sent(
        self,
        rows: torch.Tensor,
        counts: Sequence[int],
        received: Sequence[int],
        label: str,
    ) -> torch.Tensor:
        """Return the rows that all parts of the label send here; differentiable.

        Raises:
            ValueError: several dimensions of the mesh split the label.
        """
        (dim,) = (
            k
            for k, split_label in enumerate(self.configuration)
            if split_label == label
        )
        received_rows: torch.Tensor = _Rows.apply(
            rows, self.mesh.get_group(dim), counts, received
        )
        return received_rows


class _Rows(torch.autograd.Function):
    """An all-to-all of rows; gradients go the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        group: dist.ProcessGroup,
        counts: Sequence[int],
        received: Sequence[int],
    ) -> torch.Tensor:
        """Return the rows that come. [sum of received, ...]"""
        ctx.back = group, received, counts
        received_rows = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(
            received_rows, rows.contiguous(), [*received], [*counts], group=group
        )
        return received_rows

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        """Return the gradients of the rows that went."""
        return _Rows.apply(given[0], *ctx.back), None, None, None


@dataclass(frozen=True, eq=False)
class PlacedCall:
    """A call with its layouts.

    Attributes:
        reads: Value, layout and layout of the gradient, of each tensor read.
        results: Value and layout of each tensor made.
        unneeded: Values that nothing later needs.
    """

    call: LayerCall
    rule: Rule
    share: DeviceShare
    reads: tuple[tuple[int, Layout, Layout], ...]
    results: tuple[tuple[int, Layout], ...]
    unneeded: tuple[int, ...]

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute this device's part."""
        return run_part(self.call, self.rule, self.share, tensors)


def run_part(
    call: LayerCall, rule: Rule, share: Share, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Compute a device's part of a call: the tensors that it makes, or changes."""
    remaining = iter(tensors)
    run = rule.run
    return call.made(
        lambda value: next(remaining),
        None
        if run is None
        else lambda call, args, kwargs: run(call, args, kwargs, share),
    )


def place_calls(
    graph: CallGraph,
    rules: Sequence[Rule],
    split: Sequence[Configuration],
    mesh: DeviceMesh,
) -> tuple[PlacedCall, ...]:
    """Return every call with its layouts."""
    last: dict[int, int] = {}
    for i, call in enumerate(graph.calls):
        last.update(dict.fromkeys((*call.reads, *call.results), i))
    output = {
        x.value for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef)
    }
    placed = []
    for i, (call, rule, split_labels) in enumerate(
        zip(graph.calls, rules, split, strict=True)
    ):
        reads = zip(call.reads, rule.reads, strict=True)
        results = zip(call.results, rule.results, strict=True)
        placed.append(
            PlacedCall(
                call=call,
                rule=rule,
                share=DeviceShare(mesh, tuple(split_labels)),
                reads=tuple(
                    (v, read_layout(a, split_labels), gradient_layout(a, split_labels))
                    for v, a in reads
                ),
                results=tuple(
                    (v, get_result_layout(a, split_labels)) for v, a in results
                ),
                unneeded=tuple(
                    v for v, at in last.items() if at == i and v not in output
                ),
            )
        )
    return tuple(placed)
