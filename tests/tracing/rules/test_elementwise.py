from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from gnnplace.tracing.rules.elementwise import is_elementwise
from tests.tracing.rules.oracle import check, traced


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        functional.gelu,
        torch.tanh,
        lambda x: x * 2.0,
        lambda x: 1.0 / x,
        lambda x: x.clamp(min=0.0),
        lambda x: x**2,
        lambda x: -x,
    ],
)
def test_along_every_axis(function):
    assert check(function, real(4, 6)) == {"0", "1"}


def test_broadcast_tensors_stay_whole_along_what_they_lack():
    assert check(torch.add, real(4, 6, 8), real(8)) == {"0", "1", "2"}
    assert check(torch.mul, real(4, 6, 8), real(4, 1, 8)) == {"0", "1", "2"}
    assert check(torch.where, torch.rand(4, 6) > 0.5, real(4, 6), real(6)) == {"0", "1"}


def test_the_largest_of_one_tensor_is_a_reduction():
    assert check(torch.max, real(4, 6)) == set()
    assert check(lambda x: x.max(1).values, real(4, 6)) == {"0"}
    assert check(torch.maximum, real(4, 6), real(4, 6)) == {"0", "1"}


def test_softmax_mixes_one_axis():
    assert check(lambda x: functional.softmax(x, dim=-1), real(4, 6, 8)) == {"0", "1"}
    assert check(lambda x: torch.log_softmax(x, 1), real(4, 6, 8)) == {"0", "2"}
    assert check(lambda x: functional.normalize(x, dim=0), real(4, 6)) == {"1"}


def test_what_is_chosen_or_put_in_order_mixes_one_axis():
    assert check(lambda x: torch.topk(x, 3), real(4, 6, 8)) == {"0", "1"}
    assert check(lambda x: torch.topk(x, 2, 0, sorted=False)[0], real(4, 6)) == {"1"}
    assert check(lambda x: torch.sort(x, dim=1), real(4, 6, 8)) == {"0", "2"}
    assert check(torch.argsort, real(4, 6)) == {"0"}


def test_an_index_along_one_axis_leaves_the_others():
    index = torch.tensor([[0, 1], [2, 0], [1, 1], [3, 2]])
    assert check(lambda x, i: x.gather(1, i), real(4, 6), index) == {"0", "1"}
    assert check(
        lambda x, i: torch.gather(x, 0, i), real(6, 4), index.t().contiguous()
    ) == {
        "0",
        "1",
    }
    assert check(lambda x, i: x.scatter(1, i, 1.0), real(4, 6), index) == {"0"}
    assert check(
        lambda x, i, y: x.scatter_add(1, i, y), real(4, 6), index, real(4, 2)
    ) == {"0"}
    # Of four rows alone.
    assert check(lambda x, i: x.gather(1, i), real(6, 6), index) == {"1"}


def test_sums_and_means_are_made_of_parts():
    assert check(lambda x: x.sum(), real(4, 6)) == {"0", "1"}
    assert check(lambda x: x.mean(-1, keepdim=True), real(4, 6)) == {"0", "1"}
    assert check(lambda x: x.mean((0, 2)), real(4, 6, 8)) == {"0", "1", "2"}
    assert check(lambda x: torch.sum(x, dim=1), real(4, 6, 8)) == {"0", "1", "2"}


def test_a_largest_element_is_not():
    assert check(lambda x: x.amax(1), real(4, 6)) == {"0"}
    assert check(lambda x: x.argmax(-1), torch.randn(4, 6)) == {"0"}


def test_dropout_of_parts_is_dropout_of_the_whole():
    x = torch.ones(4, 6)
    torch.manual_seed(3)
    graph, rules = traced(lambda x: functional.dropout(x, 0.5), x)

    class Half:
        def parts(self, label):
            return 2 if label == "0" else 1

        def index(self, label):
            return 1 if label == "0" else 0

    torch.manual_seed(3)
    whole = functional.dropout(x, 0.5)
    torch.manual_seed(3)
    part = rules[0].run(graph.calls[0], (x[2:], 0.5), {}, Half())
    assert torch.equal(part, whole[2:])
    assert 0 < int((part == 0).sum()) < part.numel()


def test_names_of_operations():
    assert is_elementwise("iadd")
    assert is_elementwise("relu")
    assert not is_elementwise("matmul")
    assert not is_elementwise("no_such_operation")
