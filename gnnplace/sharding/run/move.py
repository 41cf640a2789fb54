"""Tensors between layouts, as DTensor redistributes them; autograd goes the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED, Layout, Place, settled
from gnnplace.sharding.run.collectives import changed, is_plain
from gnnplace.sharding.run.mesh import grouped_shard


def placements(layout: Layout) -> tuple[Placement, ...]:
    """DTensor's words for a layout."""
    return tuple(_placement(place) for place in layout)


def _placement(place: Place) -> Placement:
    if place == PARTIAL:
        return Partial()
    if place == REPLICATED:
        return Replicate()
    return grouped_shard(*place) if place.groups else Shard(place.axis)


def redistributed(
    local: torch.Tensor, mesh: DeviceMesh, before: Layout, after: Layout
) -> torch.Tensor:
    """A device's part in another layout; no gradient."""
    if before == after:
        return local
    with torch.no_grad():
        if is_plain(before, after):
            return changed(local, mesh, before, after)
        whole = DTensor.from_local(local, mesh, placements(before), run_check=False)
        return whole.redistribute(mesh, placements(after)).to_local()


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        local: torch.Tensor,
        mesh: DeviceMesh,
        before: Layout,
        after: Layout,
        gradient: Layout,
    ) -> torch.Tensor:
        ctx.back = (mesh, gradient, settled(before))
        made = redistributed(local, mesh, before, after)
        own = made.untyped_storage().data_ptr() != local.untyped_storage().data_ptr()
        return made if own else made.clone()  # either may be changed in place

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return redistributed(given.contiguous(), *ctx.back), None, None, None, None


def moved(
    local: torch.Tensor, mesh: DeviceMesh, before: Layout, after: Layout, gradient: Layout
) -> torch.Tensor:
    """A device's part in another layout.

    Args:
        local: The part it has.
        mesh: The mesh of all devices.
        before: The layout that this is a part of.
        after: The layout wanted.
        gradient: The layout in which the gradient comes back.
    """
    if before == after and (not local.requires_grad or gradient == settled(before)):
        return local
    if not local.requires_grad:
        return redistributed(local, mesh, before, after)
    if before == after:
        alias = local.view_as(local)
        back = settled(before)
        alias.register_hook(lambda g: redistributed(g.contiguous(), mesh, gradient, back))
        return alias
    return _Move.apply(local, mesh, before, after, gradient)  # type: ignore[no-untyped-call]
