"""Moves tensors between layouts, as DTensor redistributes them; autograd moves gradients back.

Layout changes that are one collective a mesh dimension are called directly, because DTensor's
redistribution of a small tensor takes two to three times as long on a CPU as the collective itself.
An axis that two mesh dimensions shard is split by the first of them, and its shards by the second.
Other changes (one axis for another, undoing only the first of two splits) are left to DTensor.
Shards of groups of an axis are moved as whole tensors, because DTensor gets these wrong on two
dimensions (torch 2.13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.multiprocessing.reductions import StorageWeakRef

from gnnplace.sharding import (
    PARTIAL,
    REPLICATED,
    Layout,
    Place,
    settle_sums,
)
from gnnplace.torch_names import StridedShard, gather_flat, scatter_flat

NAME = "gnnplace_all"


def flatten_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Have the mesh know itself as one line of devices, too; all processes call it together."""
    if mesh.ndim > 1 and mesh.mesh_dim_names is not None:
        set_mesh_group(mesh, mesh._flatten(NAME).get_group())
    return mesh


def set_mesh_group(mesh: DeviceMesh, group: dist.ProcessGroup) -> None:
    """Have a mesh of several dimensions know the group of all its devices.

    What changes along all dimensions alike is then one collective, and not one for each.
    """
    setattr(mesh, NAME, group)


def make_grouped_shard(axis: int, groups: int) -> Placement:
    """Return the placement of an axis whose groups are all cut: a device has a part of
    every group.
    """
    return StridedShard(axis, split_factor=groups)


def dtensor_placements(layout: Layout) -> tuple[Placement, ...]:
    """Return a layout as DTensor's placements."""
    return tuple(_placement(place) for place in layout)


def _placement(place: Place) -> Placement:
    if place == PARTIAL:
        return Partial()
    if place == REPLICATED:
        return Replicate()
    return make_grouped_shard(*place) if place.groups else Shard(place.axis)


def redistribute(
    local: torch.Tensor, mesh: DeviceMesh, before: Layout, after: Layout
) -> torch.Tensor:
    """Return a device's part of a tensor in another layout; no gradient flows.

    What becomes a sum is on the first device of a mesh dimension, and zero on the others.
    """
    if before == after:
        return local
    if PARTIAL in after:
        return _as_summand(local, mesh, before, after)
    with torch.no_grad():
        if is_plain(before, after):
            return change_layout(local, mesh, before, after)
        groups_apart = split_grouped_axes(before, after)
        if groups_apart is not None:
            axis, groups, *layouts = groups_apart
            front = local.unflatten(axis, (groups, local.shape[axis] // groups))
            return change_layout(front, mesh, *layouts).flatten(axis, axis + 1)
        if any(place.groups for place in (*before, *after)):
            return _move_via_replicated(local, mesh, before, after)
        tensor = DTensor.from_local(
            local, mesh, dtensor_placements(before), run_check=False
        )
        return tensor.redistribute(mesh, dtensor_placements(after)).to_local()


def _as_summand(
    local: torch.Tensor, mesh: DeviceMesh, before: Layout, after: Layout
) -> torch.Tensor:
    """Return a device's summand; along dimensions that become a sum, the first one has it all."""
    pairs = list(zip(before, after, strict=True))
    created = [dim for dim, (a, b) in enumerate(pairs) if b == PARTIAL != a]
    # What is a sum already stays one: it is no part of the change of the other dimensions.
    steps = [
        (REPLICATED, REPLICATED) if a == b == PARTIAL else (a, b) for a, b in pairs
    ]
    replicated = tuple(REPLICATED if b == PARTIAL else b for _, b in steps)
    tensor = redistribute(local, mesh, tuple(a for a, _ in steps), replicated)
    if any(mesh.get_local_rank(dim) for dim in created):
        return torch.zeros_like(tensor)
    return tensor


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        local: torch.Tensor,
        mesh: DeviceMesh,
        before: Layout,
        after: Layout,
        gradient: Layout,
        back: Layout,
    ) -> torch.Tensor:
        ctx.back = (mesh, gradient, back)
        result = redistribute(local, mesh, before, after)
        shares_storage = (
            result.untyped_storage().data_ptr() == local.untyped_storage().data_ptr()
        )
        # Either may be changed in place.
        return result.clone() if shares_storage else result

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return redistribute(given.contiguous(), *ctx.back), *(None,) * 5


def move_shard(
    local: torch.Tensor,
    mesh: DeviceMesh,
    before: Layout,
    after: Layout,
    gradient: Layout,
    back: Layout | None = None,
) -> torch.Tensor:
    """Return a device's part in another layout; its gradient goes the way back.

    Args:
        local: The part it has.
        mesh: The mesh of all devices.
        before: The layout that this is a part of.
        after: The layout that it goes into.
        gradient: The layout in which the gradient comes back.
        back: The layout that it is brought into; None: that of the part, with its sums made.
    """
    back = settle_sums(before) if back is None else back
    if before == after and (not local.requires_grad or gradient == back):
        return local
    if not local.requires_grad:
        return redistribute(local, mesh, before, after)
    if before == after:
        alias = local.view_as(local)
        alias.register_hook(
            lambda g: redistribute(g.contiguous(), mesh, gradient, back)
        )
        return alias
    return _Move.apply(local, mesh, before, after, gradient, back)  # type: ignore[no-untyped-call]


@dataclass(eq=False)
class _RegatheredPart:
    """The shard of a gathered tensor that autograd keeps in place of the tensor.

    Attributes:
        local: the shard.
        layouts: the mesh, the shard's layout and that of the gathered tensor.
        views: views of the gathered tensor that autograd keeps.
        used: views that the backward pass has asked for.
        gathered: the gathered tensor, while the backward pass needs it.
    """

    local: torch.Tensor
    layouts: tuple[DeviceMesh, Layout, Layout]
    views: int = 0
    used: int = 0
    gathered: torch.Tensor | None = None

    def view(
        self, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        """Return a view of the tensor, gathered for the first view and dropped after the last."""
        if self.gathered is None:
            self.gathered = redistribute(self.local, *self.layouts)
        view = self.gathered.as_strided(size, stride, offset)
        self.used += 1
        if self.used % self.views == 0:
            self.gathered = None
        return view


@dataclass(eq=False)
class Regathering:
    """Tensors that shards gathered, of which autograd keeps parts, as in Megatron-LM.

    Every process must go back through the same calls in the same order.
    """

    parts: dict[StorageWeakRef, _RegatheredPart] = field(default_factory=dict)

    def add(
        self,
        gathered: torch.Tensor,
        local: torch.Tensor,
        mesh: DeviceMesh,
        before: Layout,
        after: Layout,
    ) -> None:
        """Keep the shard that a tensor was gathered from.

        Args:
            gathered: The tensor, in the layout ``after``.
            local: The shard, in the layout ``before``.
            mesh: The mesh of all devices.
            before: The layout of the shard.
            after: The layout of the tensor.
        """
        self.parts[StorageWeakRef(gathered.untyped_storage())] = _RegatheredPart(
            local.detach(), (mesh, before, after)
        )

    def of(self, tensors: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
        """Return a context in which autograd saves shards of those tensors that were gathered."""
        if not any(self._part(tensor) for tensor in tensors):
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self.packed, unpack_saved)

    def _part(self, tensor: torch.Tensor) -> _RegatheredPart | None:
        if self.parts:
            return self.parts.get(StorageWeakRef(tensor.untyped_storage()))
        return None

    def packed(self, tensor: torch.Tensor) -> object:
        """Return what autograd saves in place of a tensor: see `unpack_saved`."""
        part = self._part(tensor)
        if part is None or tensor.dtype != part.local.dtype or tensor.is_conj():
            return tensor
        part.views += 1
        return part, tensor.size(), tensor.stride(), tensor.storage_offset()


def unpack_saved(packed: Any) -> torch.Tensor:
    """Return the tensor that `Regathering.packed` saved; a collective where that is a shard."""
    if isinstance(packed, torch.Tensor):
        return packed
    part, *view = packed
    tensor: torch.Tensor = part.view(*view)
    return tensor


def is_plain(before: Layout, after: Layout) -> bool:
    """Return whether every mesh dimension changes by itself, the last first where cuts are
    undone.
    """
    for source, target in zip(before, after, strict=True):
        if source.groups or target.groups:
            return False
        makes_summands = target == PARTIAL != source
        exchanges_axes = source.cuts and target.cuts and source != target
        if makes_summands or exchanges_axes:
            return False

    # Of the dimensions that cut an axis, the first ones must cut it before and after.
    for axis in {place.axis for place in (*before, *after) if place.cuts}:
        dims_before = [dim for dim, place in enumerate(before) if place.axis == axis]
        dims_after = [dim for dim, place in enumerate(after) if place.axis == axis]
        common = min(len(dims_before), len(dims_after))
        if dims_before[:common] != dims_after[:common]:
            return False
    return True


def split_grouped_axes(
    before: Layout, after: Layout
) -> tuple[int, int, Layout, Layout] | None:
    """Return layouts in which the groups of an axis are an axis of their own, where these are
    plain.

    Returns:
        The axis, its groups, and the layouts before and after; None: several axes or not plain.
    """
    places = (*before, *after)
    axes = {(place.axis, place.groups) for place in places if place.groups}
    if len(axes) != 1:
        return None
    axis, groups = axes.pop()

    # A place that cuts the groups themselves, and not each group, has no place among the new axes.
    if any(place.axis == axis and not place.groups for place in (*before, *after)):
        return None

    def behind_groups(place: Place) -> Place:
        """Return the place with the axis of groups put in front of the axis that it cut."""
        return Place(place.axis + (place.axis >= axis)) if place.cuts else place

    apart_before = tuple(map(behind_groups, before))
    apart_after = tuple(map(behind_groups, after))
    if not is_plain(apart_before, apart_after):
        return None
    return axis, groups, apart_before, apart_after


def change_layout(
    local: torch.Tensor, mesh: DeviceMesh, before: Layout, after: Layout
) -> torch.Tensor:
    """Return a device's part in another layout; what only gets smaller comes first."""
    # The same change along all dimensions is one collective of all devices.
    all_devices = getattr(mesh, NAME, None)
    if all_devices is not None and len({*zip(before, after, strict=True)}) == 1:
        source = before[0]
        target = after[0]
        if source == PARTIAL and target.cuts:
            return _scatter_sum(local, all_devices, target.axis).contiguous()
        if source.cuts and target == REPLICATED:
            return _gather_axis(local, all_devices, source.axis).contiguous()

    steps = [
        (dim, source, target)
        for dim, (source, target) in enumerate(zip(before, after, strict=True))
        if source != target
    ]

    # 1. Cuts, first those that need no collective. Where several dimensions cut an axis they keep
    # their order.
    cuts = [(dim, source, target.axis) for dim, source, target in steps if target.cuts]
    cuts = [cut for cut in cuts if not cut[1].cuts]
    num_cuts = Counter(axis for _, _, axis in cuts)
    cuts.sort(key=lambda cut: cut[1] == PARTIAL or num_cuts[cut[2]] > 1)
    for dim, source, axis in cuts:
        if source == PARTIAL:
            local = _scatter_sum(local, mesh.get_group(dim), axis)
        else:
            local = local.chunk(mesh.size(dim), axis)[mesh.get_local_rank(dim)]

    # 2. Sums that stay on every device.
    sums = [
        dim
        for dim, source, target in steps
        if source == PARTIAL and target == REPLICATED
    ]
    if sums:
        local = _sum_over_dims(local, mesh, sums)

    # 3. Cuts that are undone, the last dimension first.
    for dim, source, target in reversed(steps):
        if source.cuts and target == REPLICATED:
            local = _gather_axis(local, mesh.get_group(dim), source.axis)
    return local.contiguous()


def _move_via_replicated(
    local: torch.Tensor, mesh: DeviceMesh, before: Layout, after: Layout
) -> torch.Tensor:
    """Return a device's part in another layout; what changes is replicated in between.

    What cuts the parts of an axis goes with what cuts the axis.
    """
    steps: list[tuple[int, Place, Place]] = []
    changing_axes: set[int] = set()
    for dim, (source, target) in enumerate(zip(before, after, strict=True)):
        if source != target or source.axis in changing_axes:
            steps.append((dim, source, target))
            changing_axes.update(place.axis for place in (source, target) if place.cuts)

    # 1. Make what changes whole, the last dimension first.
    for dim, source, _ in reversed(steps):
        axis = source.axis
        if source == PARTIAL:
            local = _sum_over_dims(local, mesh, [dim])
        elif source.cuts:
            groups = local.unflatten(axis, (max(source.groups, 1), -1))
            gathered = _gather_axis(groups, mesh.get_group(dim), axis + 1)
            local = gathered.flatten(axis, axis + 1)

    # 2. Cut it anew, the first dimension first.
    for dim, _, target in steps:
        axis = target.axis
        if target.cuts:
            groups = local.unflatten(axis, (max(target.groups, 1), -1))
            parts = groups.chunk(mesh.size(dim), axis + 1)
            local = parts[mesh.get_local_rank(dim)].flatten(axis, axis + 1)
    return local.contiguous()


def _sum_over_dims(
    local: torch.Tensor, mesh: DeviceMesh, dims: list[int]
) -> torch.Tensor:
    """Return the sum of a tensor over the devices along mesh dimensions."""
    total = local.clone(memory_format=torch.contiguous_format)
    all_devices = getattr(mesh, NAME, None) if len(dims) == mesh.ndim else None
    if all_devices is not None:
        dist.all_reduce(total, group=all_devices)
        return total
    for dim in dims:
        if mesh.size(dim) > 1:
            dist.all_reduce(total, group=mesh.get_group(dim))
    return total


def _scatter_sum(
    local: torch.Tensor, group: dist.ProcessGroup, axis: int
) -> torch.Tensor:
    """Return this device's part of the sum of a tensor, cut along an axis."""
    front = local.movedim(axis, 0).contiguous()
    rows = front.shape[0] // group.size()
    part = front.new_empty(rows, *front.shape[1:])
    scatter_flat(part, front, group)
    return part.movedim(0, axis)


def _gather_axis(
    local: torch.Tensor, group: dist.ProcessGroup, axis: int
) -> torch.Tensor:
    """Return a tensor whose parts along an axis the devices of a group hold."""
    front = local.movedim(axis, 0).contiguous()
    rows = front.shape[0] * group.size()
    gathered = front.new_empty(rows, *front.shape[1:])
    gather_flat(gathered, front, group)
    return gathered.movedim(0, axis)
