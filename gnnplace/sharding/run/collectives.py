"""Layout changes that are one collective a mesh dimension, called directly.

DTensor's redistribution of a small tensor takes two to three times as long on a CPU as the
collective itself. What is not plain (an axis that two mesh dimensions cut, groups, an axis
exchanged for another) is left to it.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED, Layout


def is_plain(before: Layout, after: Layout) -> bool:
    """Whether every mesh dimension changes by itself."""
    owners: dict[int, set[int]] = {}
    for dim, places in enumerate(zip(before, after, strict=True)):
        for place in places:
            if place.groups or (place == PARTIAL and places[1] == PARTIAL != places[0]):
                return False
            if place.cuts:
                owners.setdefault(place.axis, set()).add(dim)
        if places[0].cuts and places[1].cuts and places[0] != places[1]:
            return False
    return all(len(dims) == 1 for dims in owners.values())


def changed(local: torch.Tensor, mesh: DeviceMesh, before: Layout, after: Layout) -> torch.Tensor:
    """A device's part in another layout; what only gets smaller comes first."""
    steps = [(d, a, b) for d, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    for dim, a, b in steps:
        if a == REPLICATED and b.cuts:
            local = local.chunk(mesh.size(dim), b.axis)[mesh.get_local_rank(dim)]
    for dim, a, b in steps:
        if a == PARTIAL and b.cuts:
            local = _scattered(local, mesh, dim, b.axis)
    sums = [dim for dim, a, b in steps if a == PARTIAL and b == REPLICATED]
    if sums:
        local = _summed(local, mesh, sums)
    for dim, a, b in steps:
        if a.cuts and b == REPLICATED:
            local = _gathered(local, mesh, dim, a.axis)
    return local.contiguous()


def _summed(local: torch.Tensor, mesh: DeviceMesh, dims: list[int]) -> torch.Tensor:
    total = local.clone(memory_format=torch.contiguous_format)
    if math.prod(mesh.size(dim) for dim in dims) == dist.get_world_size():
        dist.all_reduce(total)
        return total
    for dim in dims:
        if mesh.size(dim) > 1:
            dist.all_reduce(total, group=mesh.get_group(dim))
    return total


def _scattered(local: torch.Tensor, mesh: DeviceMesh, dim: int, axis: int) -> torch.Tensor:
    front = local.movedim(axis, 0).contiguous()
    made = front.new_empty(front.shape[0] // mesh.size(dim), *front.shape[1:])
    dist.reduce_scatter_single(made, front, group=mesh.get_group(dim))
    return made.movedim(0, axis)


def _gathered(local: torch.Tensor, mesh: DeviceMesh, dim: int, axis: int) -> torch.Tensor:
    front = local.movedim(axis, 0).contiguous()
    made = front.new_empty(front.shape[0] * mesh.size(dim), *front.shape[1:])
    dist.all_gather_single(made, front, group=mesh.get_group(dim))
    return made.movedim(0, axis)
