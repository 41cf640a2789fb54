from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.sharding.split_oracle import check, traced


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    ("shape", "function", "labels"),
    [
        ((4, 6, 8), lambda x: x.view(24, 8), {"0", "1"}),
        ((4, 6, 8), lambda x: x.view(4, 6, 2, 4), {"0", "1", "2"}),
        ((4, 6, 8), lambda x: x.reshape(-1), {"0"}),
        ((24, 8), lambda x: x.view(4, 6, 8), {"0", "2"}),
        ((4, 6), lambda x: x.view(6, 4), {"0"}),
        ((4, 1, 6), lambda x: x.squeeze(1), {"0", "1"}),
        ((4, 6), lambda x: x.unsqueeze(0), {"1", "2"}),
        ((4, 6, 8), lambda x: torch.flatten(x, 1), {"0", "1"}),
        ((4, 6, 8), lambda x: x.transpose(-1, -2), {"0", "1", "2"}),
        ((4, 6, 8), lambda x: x.permute(2, 0, 1), {"0", "1", "2"}),
        ((4, 6, 8), lambda x: torch.permute(x, (2, 0, 1)), {"0", "1", "2"}),
        ((4, 6), lambda x: x.t(), {"0", "1"}),
        ((4, 6), lambda x: x.T, {"0", "1"}),
        ((1, 6), lambda x: x.expand(4, -1), {"0", "1"}),
        ((6,), lambda x: x.expand(4, 6), {"0", "1"}),
        ((4, 6), lambda x: x[:, 1:3], {"0"}),
        ((4, 6, 8), lambda x: x[..., 0], {"0", "1"}),
        ((4, 6), lambda x: x[:, None], {"0", "1"}),
        ((4, 6, 8), lambda x: x.split(2, dim=1), {"0", "2"}),
        ((4, 6, 8), lambda x: torch.chunk(x, 2, -1), {"0", "1"}),
        ((4, 3, 8), lambda x: x.unbind(1), {"0", "2"}),
        ((4, 6, 8), lambda x: functional.pad(x, (0, 1)), {"0", "1"}),
        ((4, 6), lambda x: x.float(), {"0", "1"}),
    ],
)
def test_axes_are_followed(shape, function, labels):
    found = check(function, real(*shape))
    graph, rules = traced(function, real(*shape))
    reads = {axis for axis, label in enumerate(rules[0].reads[0]) if label in found}
    del graph
    assert len(found) == len(labels), (found, rules[0])
    assert len(reads) <= len(labels)


def test_pieces_side_by_side_are_split_each():
    found = check(lambda x: x.view(4, 3, 8), real(4, 24))
    assert found == {"0", "2"}
    _, rules = traced(lambda x: x.view(4, 3, 4, 2), real(4, 24))
    assert rules[0].reads == (("0", "2|3"),)
    assert rules[0].results == (("0", None, "2", None),)
    assert rules[0].extents["2"] == 4


def test_joined_axes():
    assert check(lambda a, b: torch.cat((a, b), 1), real(4, 6, 8), real(4, 2, 8)) == {"0", "2"}
    assert check(lambda a, b: torch.stack([a, b], 1), real(4, 6), real(4, 6)) == {"0", "2"}


def test_an_index_that_is_a_tensor_stays_whole():
    _, rules = traced(lambda x, i: x[i], real(4, 6), torch.tensor([1, 2]))
    assert rules[0].kind == "whole"
    assert "index" in rules[0].reason


def test_parts_that_do_not_divide_are_no_labels():
    _, rules = traced(lambda x: x.view(3, 5, 4), real(15, 4))
    assert rules[0].extents["0"] == 3
