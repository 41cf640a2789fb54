"""Fused attention of a program captured on a CPU, on whatever device it runs.

A model captured on a CPU has the CPU's fused attention ops, which no other device has. These
functions call them where the tensors are on a CPU; elsewhere they compute the same values:

    S = scale Q K^T + mask        L = logsumexp(S)      P = exp(S - L)      O = P V
    dV = P^T dO     dP = dO V^T   dS = P (dP - rowsum(dO O))   dQ = scale dS K   dK = scale dS^T Q

(Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4, without its tiling.)
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
    """Compute attention and the logarithm of its normaliser.

    Args:
        query: [batch, heads, length, width]; `key` and `value` may have another length.
        key: What is compared with the query, of its shape but for the positions.
        value: What is averaged, with as many positions as the key.
        dropout_p: 0; attention that drops is captured as plain ops.
        is_causal: Nothing attends to what comes later.
        attn_mask: Added to the scores, or, if boolean, where they count.
        scale: The scale of the scores; 1 / sqrt(width) by default.

    Returns:
        The output, as the query, and [batch, heads, length].
    """
    if query.device.type == "cpu":
        return FORWARD(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
    scores = _scores(query, key, is_causal, attn_mask, scale)
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
    """Compute the gradients of query, key and value.

    Args:
        grad: Gradient of the output.
        query: The query that `attention` was given.
        key: The key that `attention` was given.
        value: The value that `attention` was given.
        out: What `attention` returned first.
        normaliser: What it returned second.
        dropout_p: The share of weights that `attention` dropped.
        is_causal: Whether `attention` hid later positions.
        attn_mask: The mask that `attention` was given.
        scale: The factor on products that `attention` was given.
    """
    if query.device.type == "cpu":
        options = {"attn_mask": attn_mask, "scale": scale}
        return BACKWARD(
            grad, query, key, value, out, normaliser, dropout_p, is_causal, **options
        )
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights = torch.exp(scores - normaliser.unsqueeze(-1))
    upstream = grad.float()
    inner = (upstream * out.float()).sum(-1, keepdim=True)
    slope = weights * (upstream @ value.float().transpose(-1, -2) - inner)
    slope = slope * _scale(query, scale)
    grads = (
        slope @ key.float(),
        slope.transpose(-1, -2) @ query.float(),
        weights.transpose(-1, -2) @ upstream,
    )
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype)


PORTABLE: Mapping[Any, Callable[..., Any]] = {
    FORWARD: attention,
    BACKWARD: attention_backward,
}


def _scale(query: Tensor, scale: float | None) -> float:
    """Return the scale of the scores."""
    if scale is None:
        return 1 / math.sqrt(query.shape[-1])
    return scale


def _scores(
    query: Tensor,
    key: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    """Return the masked scores in float32. [batch, heads, queries, keys]"""
    scores = query.float() @ key.float().transpose(-1, -2) * _scale(query, scale)
    if is_causal:
        later = torch.ones(
            scores.shape[-2:], dtype=torch.bool, device=scores.device
        ).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask.float()
