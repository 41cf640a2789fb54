from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED, Place
from gnnplace.sharding.run import gradients as shard_gradients
from gnnplace.sharding.run.gradients import Gradients
from gnnplace.sharding.run.move import placements
from tests.sharding.mesh_processes import on_processes

CASES = [  # home, read in, gradient made in
    ((REPLICATED,), (REPLICATED,), (PARTIAL,)),
    ((Place(0),), (Place(0),), (Place(0),)),
    ((Place(0),), (REPLICATED,), (PARTIAL,)),
    ((REPLICATED,), (Place(1),), (Place(1),)),
]


def added_up(home, read, gradient):
    """Gradients of two steps of sum(p * (rank + 1)), or of the part's share of it."""
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(8.0).view(2, 4)
    parameter = nn.Parameter(distribute_tensor(whole, mesh, placements(home)))
    factor = mesh.get_local_rank() + 1.0 if PARTIAL in gradient else 3.0
    for _ in range(2):
        gradients = Gradients(mesh)
        leaf = gradients.leaf(parameter, home, read, gradient)
        (leaf * factor).sum().backward()
        assert leaf.grad is None
    return parameter.grad.full_tensor().tolist()


@pytest.mark.parametrize(("home", "read", "gradient"), CASES)
def test_sums_over_devices_and_steps(home, read, gradient):
    for found in on_processes(2, lambda rank: added_up(home, read, gradient)):
        assert found == [[6.0] * 4] * 2


def test_many_gradients_go_in_few_collectives(monkeypatch):
    monkeypatch.setattr(shard_gradients, "BUCKET", 100)

    sizes = [(10, torch.float32), (10, torch.float32), (10, torch.float32), (40, torch.float32),
             (5, torch.float64), (5, torch.float64)]  # fmt: skip
    tensors = [torch.zeros(n, dtype=dtype) for n, dtype in sizes]
    assert list(shard_gradients.buckets(tensors)) == [[0, 1], [2], [3], [4, 5]]
    assert list(shard_gradients.buckets([])) == []
    large = [torch.ones(n) for n in (10, 10, 10, 50, 5)]
    assert list(shard_gradients.buckets(large)) == [[0, 1], [2], [3], [4]]


def test_without_gradients_there_are_no_leaves():
    def work(rank):
        mesh = init_device_mesh("cpu", (1,))
        parameter = nn.Parameter(distribute_tensor(torch.ones(2), mesh, placements((REPLICATED,))))
        gradients = Gradients(mesh)
        with torch.no_grad():
            tensor = gradients.leaf(parameter, *[(REPLICATED,)] * 3)
        return tensor.requires_grad, len(gradients.leaves)

    assert on_processes(1, work) == [(False, 0)]
