from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from gnnplace.run.split import move
from gnnplace.run.split.move import (
    Regathering,
    change_layout,
    flatten_mesh,
    is_plain,
    move_shard,
)
from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED, Place, settle_sums
from tests.sharding.mesh_processes import on_processes

PLACES = (REPLICATED, PARTIAL, Place(0), Place(1))
MESH = (2, 2)


def part(whole, layout, mesh):
    """A device's part of a whole tensor; of a sum, the first device has it all."""
    for dim, place in enumerate(layout):
        if place == PARTIAL:
            whole = whole * float(mesh.get_local_rank(dim) == 0)
        elif place.cuts:
            apart = whole.unflatten(place.axis, (max(place.groups, 1), -1))
            own = apart.chunk(mesh.size(dim), place.axis + 1)[mesh.get_local_rank(dim)]
            whole = own.flatten(place.axis, place.axis + 1)
    return whole.detach().clone(memory_format=torch.contiguous_format)


def grouped_twice(layout):
    """Whether two dimensions cut an axis of which one cuts groups."""
    axes = [place.axis for place in layout if place.cuts]
    return len(set(axes)) < len(axes) and any(place.groups for place in layout)


def every_move(rank, places=PLACES):
    """Moves between all layouts, forward and backward; returns those that went wrong."""
    mesh = flatten_mesh(
        init_device_mesh("cpu", MESH, mesh_dim_names=("outer", "inner"))
    )
    torch.manual_seed(0)
    x, g = torch.randn(4, 8), torch.randn(4, 8)
    wrong = []
    layouts = [x for x in itertools.product(places, repeat=2) if not grouped_twice(x)]
    for before, after in itertools.product(layouts, layouts):
        if PARTIAL in after or (
            places != PLACES and not any(p.groups for p in (*before, *after))
        ):
            continue
        gradient = tuple(PARTIAL if p == REPLICATED else p for p in after)
        local = part(x, before, mesh).requires_grad_()
        made = move_shard(local, mesh, before, after, gradient)
        made.backward(part(g, gradient, mesh))
        right = torch.equal(made.detach(), part(x, after, mesh))
        back = torch.allclose(local.grad, part(g, settle_sums(before), mesh))
        if not (right and back):
            wrong.append((before, after))
    return wrong


def test_all_layouts_of_four_devices_forward_and_backward():
    assert on_processes(4, every_move) == [[]] * 4


def every_move_of_groups(rank):
    return every_move(rank, (REPLICATED, PARTIAL, Place(0), Place(1), Place(1, 2)))


def test_all_layouts_with_groups_of_an_axis():
    """Four processes, 300 moves there and back: six seconds, most of them starts."""
    assert on_processes(4, every_move_of_groups) == [[]] * 4


@pytest.mark.parametrize(
    ("before", "after", "plain"),
    [
        ((PARTIAL, Place(0)), (REPLICATED, Place(0)), True),
        ((PARTIAL, REPLICATED), (Place(0), Place(1)), True),
        ((Place(0), Place(1)), (REPLICATED, REPLICATED), True),
        # Two dimensions, one axis.
        ((Place(0), REPLICATED), (REPLICATED, Place(0)), False),
        ((Place(0), Place(0)), (REPLICATED, Place(0)), False),
        ((Place(0), Place(0)), (Place(0), REPLICATED), True),
        ((Place(0),), (Place(1),), False),
        ((Place(0, 3),), (REPLICATED,), False),
        ((REPLICATED,), (PARTIAL,), False),
    ],
)
def test_what_is_plain(before, after, plain):
    assert is_plain(before, after) is plain


def every_plain_change(rank):
    mesh = flatten_mesh(
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    )
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    layouts = list(itertools.product(PLACES, repeat=2))
    wrong = []
    for before, after in itertools.product(layouts, layouts):
        if PARTIAL in after or not is_plain(before, after):
            continue
        made = change_layout(part(x, before, mesh), mesh, before, after)
        if not torch.equal(made, part(x, after, mesh)):
            wrong.append((before, after))
    return wrong


def test_plain_changes_of_four_devices():
    assert on_processes(4, every_plain_change) == [[]] * 4


def gathered_twice(rank):
    """Two products and a view's of one gathered tensor, which is kept, or gathered again."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    x, weights = (
        torch.randn(4, 6, 8),
        [torch.randn(8, 8, requires_grad=True) for _ in range(3)],
    )
    gathers, gather = [], move.gather_flat
    move.gather_flat = lambda *args: gathers.append(0) or gather(*args)
    found = []
    for again in (False, True):
        parts = Regathering()
        local = part(x, (Place(1),), mesh).requires_grad_()
        whole = move_shard(local, mesh, (Place(1),), (REPLICATED,), (PARTIAL,))
        if again:
            parts.add(whole, local, mesh, (Place(1),), (REPLICATED,))
        made, storage = 0.0, StorageWeakRef(whole.untyped_storage())
        for weight, read in zip(
            weights, (whole, whole, whole.view(24, 8)), strict=True
        ):
            with parts.of([read]):
                made = made + functional.linear(read, weight).square().sum()
        del whole, read
        gone = storage.expired()
        made.backward()
        gradients = [local.grad, *(weight.grad for weight in weights)]
        found.append((gone, len(gathers), gradients))
        for weight in weights:
            weight.grad = None
    same = all(torch.equal(a, b) for a, b in zip(found[0][2], found[1][2], strict=True))
    return [f[:2] for f in found], same


def test_what_is_gathered_again_is_kept_as_a_part_and_gathered_once_for_all_that_read_it():
    assert on_processes(2, gathered_twice) == [([(False, 1), (True, 3)], True)] * 2
