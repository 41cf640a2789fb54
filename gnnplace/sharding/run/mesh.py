"""What a device mesh needs beyond torch's public interface."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement
from torch.distributed.tensor.placement_types import _StridedShard

NAME = "gnnplace_all"


def flattened(mesh: DeviceMesh) -> DeviceMesh:
    """Has the mesh know itself as one line of devices, too.

    A sum over all of its dimensions is then one collective and not one for each.
    """
    if mesh.ndim > 1 and mesh.mesh_dim_names is not None:
        mesh._flatten(NAME)
    return mesh


def grouped_shard(axis: int, groups: int) -> Placement:
    """An axis of several groups, each of them cut: a device has the same part of every group."""
    return _StridedShard(axis, split_factor=groups)
