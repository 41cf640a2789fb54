from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.sharding.captured.graph import split_graph
from gnnplace.sharding.captured.layout import mesh_configurations
from tests.tracing.rules import oracle
from tests.tracing.rules.oracle import check, traced


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def test_attention_along_batch_heads_and_queries():
    q, k, v = real(2, 4, 6, 8), real(2, 4, 10, 8), real(2, 4, 10, 8)
    attend = functional.scaled_dot_product_attention
    every = {"0", "heads", "queries"}
    assert check(attend, q, k, v) == every
    mask = torch.rand(2, 1, 6, 10) > 0.3
    assert (
        check(lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, mask) == every
    )
    assert (
        check(lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, mask[0, 0])
        == every
    )
    few = check(
        lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, mask[:, :, :1]
    )
    assert few == every
    q = real(2, 4, 8, 8)
    # As many as queries, fewer and more: query i sees keys up to i.
    for keys in (8, 4, 10):
        k, v = real(2, 4, keys, 8), real(2, 4, keys, 8)
        causal = check(
            lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.3), q, k, v
        )
        assert causal == every | {"zigzag"}
    grouped = check(
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        real(2, 4, 6, 8),
        real(2, 2, 6, 8),
        real(2, 2, 6, 8),
    )
    assert grouped == every


@pytest.mark.parametrize("parts", [3, 4, 5])
def test_zigzag_sends_every_block_to_its_part_and_back(parts, monkeypatch):
    monkeypatch.setattr(oracle, "PARTS", parts)
    q, k, v = (real(parts, parts, 4 * parts, 8) for _ in range(3))
    attend = functional.scaled_dot_product_attention
    assert "zigzag" in check(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)


def test_zigzag_needs_two_blocks_a_part_and_is_not_mixed_with_runs_of_queries():
    def causal(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert (
        "zigzag"
        not in traced(causal, *(real(2, 4, 9, 8) for _ in range(3)))[1][0].extents
    )
    graph, rules = traced(causal, *(real(2, 4, 16, 8) for _ in range(3)))
    assert rules[0].extents["zigzag"] == 8
    found = split_graph(graph, rules).ops[0].shape
    options = mesh_configurations(found, (2, 2))
    assert ("queries", "queries") in options
    assert ("zigzag", "heads") in options
    assert not {("queries", "zigzag"), ("zigzag", "queries"), ("zigzag", "zigzag")} & {
        *options
    }


def test_attention_with_dropout_stays_whole():
    _, rules = traced(
        lambda q: functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
        real(2, 4, 6, 8),
    )
    assert rules[0].kind == "whole"
    assert "dropout" in rules[0].reason


def fused(x, *weights, mask=None, need_weights=True):
    return functional.multi_head_attention_forward(
        x, x, x, 8, 4, weights[0], weights[1], None, None, False, 0.0, weights[2], weights[3],
        need_weights=need_weights, attn_mask=mask,
    )  # fmt: skip


@pytest.fixture
def weights():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 4).double()
    return [torch.randn_like(p).requires_grad_() for p in layer.parameters()]


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention_along_batch_and_heads(weights, need_weights):
    def attend(x, *weights):
        return fused(x, *weights, need_weights=need_weights)

    assert check(attend, real(6, 4, 8), *weights) == {"1", "heads"}


@pytest.mark.parametrize(
    "mask", [torch.rand(6, 6).double(), torch.ones(6, 6).triu(1).bool()]
)
def test_multi_head_attention_with_a_mask(weights, mask):
    def attend(x, mask, *weights):
        return fused(x, *weights, mask=mask)

    assert check(attend, real(6, 4, 8), mask, *weights) == {"1", "heads"}


def test_attention_to_another_tensor(weights):
    def attend(x, y, *weights):
        return functional.multi_head_attention_forward(
            x,
            y,
            y,
            8,
            4,
            weights[0],
            weights[1],
            None,
            None,
            False,
            0.0,
            weights[2],
            weights[3],
        )

    assert check(attend, real(6, 4, 8), real(5, 4, 8), *weights) == {"1", "heads"}


def test_padding_is_along_the_batch_alone(weights):
    def attend(x, padding, *weights):
        return functional.multi_head_attention_forward(
            x, x, x, 8, 4, weights[0], weights[1], None, None, False, 0.0, weights[2], weights[3],
            key_padding_mask=padding,
        )  # fmt: skip

    padding = torch.zeros(4, 6).bool()
    padding[1:, 4:] = True
    assert check(attend, real(6, 4, 8), padding, *weights) == {"1"}


def test_multi_head_attention_with_dropout_stays_whole(weights):
    _, rules = traced(
        lambda x, *w: functional.multi_head_attention_forward(
            x, x, x, 8, 4, w[0], w[1], None, None, False, 0.1, w[2], w[3]
        ),
        real(6, 4, 8),
        *weights,
    )
    assert "dropout" in rules[0].reason
