from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED, Place
from gnnplace.sharding.run.collectives import changed, is_plain
from tests.sharding.mesh_processes import on_processes
from tests.sharding.run.test_move import PLACES, part


@pytest.mark.parametrize(
    ("before", "after", "plain"),
    [
        ((PARTIAL, Place(0)), (REPLICATED, Place(0)), True),
        ((PARTIAL, REPLICATED), (Place(0), Place(1)), True),
        ((Place(0), Place(1)), (REPLICATED, REPLICATED), True),
        ((Place(0), REPLICATED), (REPLICATED, Place(0)), False),  # two dimensions, one axis
        ((Place(0), Place(0)), (REPLICATED, Place(0)), False),
        ((Place(0), Place(0)), (Place(0), Place(0)), False),
        ((Place(0),), (Place(1),), False),
        ((Place(0, 3),), (REPLICATED,), False),
        ((REPLICATED,), (PARTIAL,), False),
    ],
)
def test_what_is_plain(before, after, plain):
    assert is_plain(before, after) is plain


def every_plain_change(rank):
    mesh = init_device_mesh("cpu", (2, 2))
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    layouts = list(itertools.product(PLACES, repeat=2))
    wrong = []
    for before, after in itertools.product(layouts, layouts):
        if PARTIAL in after or not is_plain(before, after):
            continue
        made = changed(part(x, before, mesh), mesh, before, after)
        if not torch.equal(made, part(x, after, mesh)):
            wrong.append((before, after))
    return wrong


def test_plain_changes_of_four_devices():
    assert on_processes(4, every_plain_change) == [[]] * 4
