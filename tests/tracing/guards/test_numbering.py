"""Numbers of values: equal exactly where plain PyTorch computes the same by the same ops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from gnnplace.tracing.guards.numbering import Numbering
from gnnplace.tracing.tensors import get_storage_key

EYE = torch.eye(4)


def parse_flag_number(run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> int:
    x, w = torch.ones(4, 4), torch.full((4, 4), 2.0)
    numbering = Numbering(
        {get_storage_key(x): "x", get_storage_key(w): "w"}, frozenset({"x"})
    )
    with numbering:
        return numbering.number(run(x, w))


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4, 4)
    y[1:3].copy_(x[:2])
    return y.add_(w)


def slope(
    x: torch.Tensor, w: torch.Tensor, input_too: bool, last: bool
) -> torch.Tensor:
    """The gradient of a kernel where its input learns too or not, or else of what it reads."""
    image, kernel = x.detach().view(1, 1, 4, 4), w.detach().view(1, 1, 4, 4)
    y = functional.conv2d(image.requires_grad_(input_too), kernel.requires_grad_())
    return torch.autograd.grad(y.sum(), kernel if last else image)[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (lambda x, w: x @ w, lambda x, w: torch.matmul(x, w), True),
        (lambda x, w: x @ w, lambda x, w: w @ x, False),
        (lambda x, w: x * 2, lambda x, w: x * 2.0, False),  # 2 == 2.0 in Python
        (lambda x, w: x + w, lambda x, w: x.clone().add_(w), True),
        (lambda x, w: x[1:], lambda x, w: x[:3], False),
        (lambda x, w: x.t().relu(), lambda x, w: x.relu(), False),
        (lambda x, w: x + EYE, lambda x, w: x + EYE.clone(), True),
        (
            lambda x, w: x + torch.tensor([1.0]),
            lambda x, w: x + torch.tensor([3.0]),
            False,
        ),
        (written, written, True),
        (written, lambda x, w: torch.zeros(4, 4).add_(w), False),
        (lambda x, w: x.max(0)[0], lambda x, w: x.max(0)[1], False),
        (
            lambda x, w: slope(x, w, True, True),
            lambda x, w: slope(x, w, False, True),
            True,
        ),
        (
            lambda x, w: slope(x, w, True, True),
            lambda x, w: slope(x, w, True, False),
            False,
        ),
    ],
)
def test_equal_computations_have_equal_numbers(one, other, same) -> None:
    assert (parse_flag_number(one) == parse_flag_number(other)) is same


def test_an_in_place_change_is_seen_through_every_view() -> None:
    x = torch.ones(4, 4)
    with Numbering({get_storage_key(x): "x"}) as numbering:
        row = x[0]
        before = numbering.number(row)
        x.mul_(2)
        assert numbering.number(row) != before


def drawn(run: Callable[[], object]) -> bool:
    with Numbering({}) as numbering:
        numbering.label = 7
        run()
    assert set(numbering.random) <= {7}
    return bool(numbering.random)


X = torch.ones(1, 2, 4, 8)


@pytest.mark.parametrize(
    "run",
    [
        lambda: functional.dropout(X, 0.5),
        lambda: functional.dropout(X, 0.0),
        lambda: functional.dropout(X, 0.5, training=False),
        lambda: functional.scaled_dot_product_attention(X, X, X),
        lambda: functional.scaled_dot_product_attention(X, X, X, dropout_p=0.5),
        lambda: functional.gumbel_softmax(X),
        lambda: functional.rrelu(-X, training=True),
        lambda: torch.nn.LSTM(8, 8, 2, dropout=0.5)(X[0]),
        lambda: torch.randperm(9),
        lambda: torch.poisson(X),
        lambda: X.clone().cauchy_(),
        lambda: X.softmax(-1),
    ],
)
def test_a_call_draws_where_it_moves_the_generator_of_plain_pytorch(run) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    run()
    assert drawn(run) is not bool(torch.equal(torch.get_rng_state(), before))
