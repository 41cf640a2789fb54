from __future__ import annotations

import random

import pytest
import torch

from gnnplace import zoo
from gnnplace.bench.models.cells import (
    NASNET_NORMAL,
    NASNET_REDUCTION,
    OPERATIONS,
    Cell,
    sample_cell,
)


def test_sampled_cells_are_those_of_their_seed_and_take_earlier_nodes():
    cells = [sample_cell(random.Random(seed), 6) for seed in (1, 1, 2)]
    assert cells[0] == cells[1] != cells[2]
    for number, (a, first, b, second) in enumerate(cells[2]):
        assert 0 <= min(a, b) <= max(a, b) < number + 2
        assert {first, second} <= set(OPERATIONS)


@pytest.mark.parametrize("reduction", [False, True])
def test_a_cell_joins_its_loose_ends_and_a_reduction_halves(reduction):
    nodes = NASNET_REDUCTION if reduction else NASNET_NORMAL
    cell = Cell(nodes, (6, 10), 4, (2, 1), reduction)
    out = cell(torch.randn(2, 6, 16, 16), torch.randn(2, 10, 8, 8))
    assert cell.loose == ([4, 5, 6] if reduction else [2, 3, 4, 5, 6])
    assert out.shape == (2, 4 * len(cell.loose), *((4, 4) if reduction else (8, 8)))


def test_other_architectures_are_other_networks():
    counts = {
        sum(
            p.numel()
            for p in zoo.build("searched_cnn", architecture=i).model.parameters()
        )
        for i in range(6)
    }
    assert len(counts) > 3
