from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh

from gnnplace.run.split.runner import DeviceShare
from tests.sharding.mesh_processes import on_processes


def share(rank):
    mesh = init_device_mesh("cpu", (2, 2))
    both = DeviceShare(mesh, ("a", "a"))
    second = DeviceShare(mesh, (None, "a"))
    x = torch.full((3,), float(rank), requires_grad=True)
    y = second.total(x, "a")
    (y * (rank + 1.0)).sum().backward()
    return {
        "both": (both.parts("a"), both.index("a")),
        "second": (
            second.parts("a"),
            second.index("a"),
            second.parts("b"),
            second.index("b"),
        ),
        "total": y.detach().tolist(),
        "gradient": x.grad.tolist(),
    }


def test_what_a_device_knows_of_its_part():
    found = on_processes(4, share)
    assert [f["both"] for f in found] == [(4, 0), (4, 1), (4, 2), (4, 3)]
    assert [f["second"] for f in found] == [(2, 0, 1, 0), (2, 1, 1, 0)] * 2
    assert [f["total"][0] for f in found] == [1.0, 1.0, 5.0, 5.0]
    assert [f["gradient"][0] for f in found] == [3.0, 3.0, 7.0, 7.0]
