"""Runs the fused attention of a program captured on a CPU on any device.

A model captured on a CPU has the CPU's fused attention ops, which no other device has. The
functions here call these ops if the tensors are on a CPU. Elsewhere they compute the same values in
float32, with the scores in memory:

    S = scale Q K^T + mask        L = logsumexp(S)      P = exp(S - L)      O = P V
    dV = P^T dO     dP = dO V^T   dS = P (dP - rowsum(dO O))   dQ = scale dS K   dK = scale dS^T Q

Source: Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4, without its tiling. So memory is
O(queries x keys) for each head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output of attention, and the logarithm of its normaliser (L above).

    Args:
        query: Queries. [batch, heads, queries, width]
        key: Keys. [batch, heads, keys, width]
        value: Values. [batch, heads, keys, width]
        dropout_p: Must be 0: attention with dropout is captured as plain ops.
        is_causal: Whether no query attends to keys at later positions.
        attn_mask: Added to the scores; if boolean, True for the scores that count.
        scale: The scale of the scores; 1 / sqrt(width) by default.

    Returns:
        The output in the type of the queries [batch, heads, queries, width], and the normaliser's
        logarithm [batch, heads, queries].
    """
    if query.device.type == "cpu":
        return FORWARD(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
    scores = _compute_scores(query, key, is_causal, attn_mask, scale)
    normaliser = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - normaliser.unsqueeze(-1))
    return (weights @ value.float()).to(query.dtype), normaliser


def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    normaliser: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, each in the type of its tensor.

    Args:
        grad: Gradient of the output. [batch, heads, queries, width]
        query: The queries of `attention`.
        key: The keys of `attention`.
        value: The values of `attention`.
        out: The output that `attention` returned.
        normaliser: The normaliser's logarithm that `attention` returned.
        dropout_p: As of `attention`.
        is_causal: As of `attention`.
        attn_mask: As of `attention`.
        scale: As of `attention`.
    """
    if query.device.type == "cpu":
        options = {"attn_mask": attn_mask, "scale": scale}
        return BACKWARD(
            grad, query, key, value, out, normaliser, dropout_p, is_causal, **options
        )
    # The weights are computed again from the normaliser, instead of being kept.
    scores = _compute_scores(query, key, is_causal, attn_mask, scale)
    weights = torch.exp(scores - normaliser.unsqueeze(-1))
    output_grad = grad.float()
    row_sums = (output_grad * out.float()).sum(-1, keepdim=True)
    weight_grad = output_grad @ value.float().transpose(-1, -2)
    score_grad = weights * (weight_grad - row_sums)
    score_grad = score_grad * _get_scale(query, scale)
    query_grad = score_grad @ key.float()
    key_grad = score_grad.transpose(-1, -2) @ query.float()
    value_grad = weights.transpose(-1, -2) @ output_grad
    return (
        query_grad.to(query.dtype),
        key_grad.to(key.dtype),
        value_grad.to(value.dtype),
    )


PORTABLE: Mapping[Any, Callable[..., Any]] = {
    FORWARD: attention,
    BACKWARD: attention_backward,
}
"""The function that stands for each of the CPU's ops."""


def _get_scale(query: Tensor, scale: float | None) -> float:
    """Return the scale of the scores: 1 / sqrt(width) if none is given."""
    if scale is None:
        return 1 / math.sqrt(query.shape[-1])
    return scale


def _compute_scores(
    query: Tensor,
    key: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    """Return the masked scores in float32. [batch, heads, queries, keys]"""
    scores = query.float() @ key.float().transpose(-1, -2) * _get_scale(query, scale)
    if is_causal:
        all_pairs = torch.ones(
            scores.shape[-2:], dtype=torch.bool, device=scores.device
        )
        is_later = all_pairs.triu(1)
        scores = scores.masked_fill(is_later, -math.inf)
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask.float()
