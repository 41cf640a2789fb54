"""What a device mesh needs beyond torch's public interface."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

NAME = "gnnplace_all"


def flattened(mesh: DeviceMesh) -> DeviceMesh:
    """Has the mesh know itself as one line of devices, too.

    A sum over all of its dimensions is then one collective and not one for each.
    """
    if mesh.ndim > 1 and mesh.mesh_dim_names is not None:
        mesh._flatten(NAME)
    return mesh
