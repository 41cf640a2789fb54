from __future__ import annotations

import itertools

import torch
from torch.distributed.device_mesh import init_device_mesh

from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED, Place, settled
from gnnplace.sharding.run.move import moved
from tests.sharding.mesh_processes import on_processes

PLACES = (REPLICATED, PARTIAL, Place(0), Place(1))
MESH = (2, 2)


def part(whole, layout, mesh):
    """A device's part of a whole tensor; of a sum, the first device has it all."""
    for dim, place in enumerate(layout):
        if place == PARTIAL:
            whole = whole * float(mesh.get_local_rank(dim) == 0)
        elif place.cuts:
            whole = whole.chunk(mesh.size(dim), place.axis)[mesh.get_local_rank(dim)]
    return whole.detach().clone(memory_format=torch.contiguous_format)


def every_move(rank):
    """Moves between all layouts, forward and backward; returns those that went wrong."""
    mesh = init_device_mesh("cpu", MESH)
    torch.manual_seed(0)
    x, g = torch.randn(4, 8), torch.randn(4, 8)
    wrong = []
    layouts = list(itertools.product(PLACES, repeat=2))
    for before, after in itertools.product(layouts, layouts):
        if PARTIAL in after:
            continue
        gradient = tuple(PARTIAL if p == REPLICATED else p for p in after)
        local = part(x, before, mesh).requires_grad_()
        made = moved(local, mesh, before, after, gradient)
        made.backward(part(g, gradient, mesh))
        right = torch.equal(made.detach(), part(x, after, mesh))
        back = torch.allclose(local.grad, part(g, settled(before), mesh))
        if not (right and back):
            wrong.append((before, after))
    return wrong


def test_all_layouts_of_four_devices_forward_and_backward():
    assert on_processes(4, every_move) == [[]] * 4
