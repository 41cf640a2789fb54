from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.tracing.rules.oracle import check, traced


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def test_linear():
    labels = check(functional.linear, real(4, 6, 8), real(10, 8), real(10))
    assert labels == {"0", "1", "in", "out"}
    assert check(functional.linear, real(4, 8), real(10, 8)) == {"0", "in", "out"}
    named = check(
        lambda x, w, b: functional.linear(x, weight=w, bias=b),
        real(4, 8),
        real(10, 8),
        real(10),
    )
    assert named == {"0", "in", "out"}


def test_keywords_in_another_order_stay_whole():
    _, rules = traced(
        lambda x, w: functional.linear(weight=w, input=x), real(8, 8), real(8, 8)
    )
    assert "order" in rules[0].reason


def test_addmm():
    assert check(torch.addmm, real(10), real(4, 8), real(8, 10)) == {"0", "in", "out"}
    scaled = check(
        lambda a, b, c: torch.addmm(a, b, c, alpha=2.0, beta=0.5),
        real(10),
        real(4, 8),
        real(8, 10),
    )
    assert scaled == {"0", "in", "out"}


@pytest.mark.parametrize(
    ("a", "b", "labels"),
    [
        ((4, 6), (6, 8), {"rows", "in", "out"}),
        ((2, 4, 6), (2, 6, 8), {"0", "rows", "in", "out"}),
        ((2, 4, 4, 6), (4, 6, 8), {"0", "1", "rows", "in", "out"}),
        ((1, 4, 6), (2, 6, 8), {"0", "rows", "in", "out"}),
    ],
)
def test_products_broadcast(a, b, labels):
    assert check(torch.matmul, real(*a), real(*b)) == labels


def test_convolutions():
    labels = check(
        lambda x, w, b: functional.conv2d(x, w, b, padding=1),
        real(4, 4, 5, 5),
        real(6, 4, 3, 3),
        real(6),
    )
    assert labels == {"0", "in", "out"}
    grouped = check(
        lambda x, w: functional.conv2d(x, w, groups=2),
        real(4, 4, 5, 5),
        real(6, 2, 3, 3),
    )
    assert grouped == {"0"}
    assert check(lambda x: functional.avg_pool2d(x, 2), real(4, 4, 6, 6)) == {"0", "1"}


def test_embedding_along_vocabulary_and_features():
    ids = torch.randint(10, (4, 6))
    assert check(functional.embedding, ids, real(10, 8)) == {
        "0",
        "1",
        "vocabulary",
        "features",
    }
    check(lambda i, w: functional.embedding(i, w, padding_idx=3), ids, real(10, 8))
    check(lambda i, w: functional.embedding(i, w, padding_idx=-1), ids, real(10, 8))
    _, rules = traced(
        lambda i, w: functional.embedding(i, w, max_norm=1.0), ids, real(10, 8).detach()
    )
    assert rules[0].kind == "whole"


def test_einsum_by_its_letters():
    labels = check(
        lambda a, b: torch.einsum("btd,bsd->bts", a, b), real(2, 4, 6), real(2, 8, 6)
    )
    assert labels == {"b", "t", "s", "d"}
    _, rules = traced(lambda a: torch.einsum("...d->...", a), real(2, 4))
    assert rules[0].kind == "whole"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_along_the_batch(kind, first):
    layer = kind(6, 5, num_layers=2, batch_first=first).double()

    def run(x, h, *weights):
        state = (h, h) if kind is nn.LSTM else h
        function = torch._VF.lstm if kind is nn.LSTM else torch._VF.gru
        return function(x, state, list(weights), True, 2, 0.0, True, False, first)

    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    shape = (4, 3, 6) if first else (3, 4, 6)
    assert check(run, real(*shape), real(2, 4, 5), *weights) == {"0"}


def test_transposed_convolutions():
    labels = check(
        lambda x, w, b: functional.conv_transpose2d(x, w, b, stride=2),
        real(4, 4, 5, 5),
        real(4, 6, 2, 2),
        real(6),
    )
    assert labels == {"0", "in", "out"}
    grouped = check(
        lambda x, w: functional.conv_transpose1d(x, w, groups=2),
        real(4, 4, 5),
        real(4, 3, 3),
    )
    assert grouped == {"0"}
