from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from gnnplace.tracing.calls.graph import fill
from tests.tracing.rules.oracle import Exchange, PartShare, check, traced


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def test_layer_norm_along_what_it_does_not_normalise():
    labels = check(
        lambda x, w, b: functional.layer_norm(x, (8,), w, b),
        real(4, 6, 8),
        real(8),
        real(8),
    )
    assert labels == {"0", "1"}
    assert check(lambda x: functional.rms_norm(x, (8,)), real(4, 6, 8)) == {"0", "1"}


def test_group_norm_along_the_batch():
    assert check(lambda x: functional.group_norm(x, 2), real(4, 6, 5)) == {"0"}


def test_batch_norm_of_parts_is_that_of_the_whole():
    labels = check(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
        real(4, 6, 5), real(6), real(6),
    )  # fmt: skip
    assert labels == {"0", "channels"}


def test_batch_norm_in_evaluation():
    mean, var = torch.randn(6).double(), torch.rand(6).double()
    labels = check(
        lambda x, m, v: functional.batch_norm(x, m, v), real(4, 6, 5), mean, var
    )
    assert labels == {"0", "channels"}


@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_running_statistics_are_those_of_the_whole_batch(momentum):
    x = torch.randn(4, 6, 5).double()

    def norm(x, m, v):
        return functional.batch_norm(x, m, v, training=True, momentum=momentum)

    graph, rules = traced(norm, x, torch.zeros(6).double(), torch.ones(6).double())
    call, rule = graph.calls[-1], rules[-1]
    want = (torch.zeros(6).double(), torch.ones(6).double())
    functional.batch_norm(x, *want, training=True, momentum=momentum)
    from concurrent.futures import ThreadPoolExecutor

    exchange = Exchange()

    def part(i):
        state = (torch.zeros(6).double(), torch.ones(6).double())
        rest = iter((x[2 * i : 2 * i + 2], *state))
        args = fill(call.args, lambda _: next(rest))
        kwargs = fill(call.kwargs, lambda _: next(rest))
        rule.run(call, args, kwargs, PartShare("0", i, exchange))
        return state

    with ThreadPoolExecutor(2) as pool:
        states = list(pool.map(part, range(2)))
    for got in states:
        torch.testing.assert_close(got, want)
