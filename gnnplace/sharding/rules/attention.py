"""Rules of attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from gnnplace.sharding.captured.calls import CallRef, LayerCall
from gnnplace.sharding.rules.rule import Axes, Case, Rule, RuleDraft, Share, whole

HEADS, QUERIES = "heads", "queries"
SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
DROPOUT = "its dropout draws other numbers on each part"


def attention(case: Case) -> Rule:
    """Scaled dot products: along batch, heads and queries; 4 FLOP a pair and feature.

    A part of the queries has all keys and values: context parallelism with gathered keys, as
    Llama 3 was trained (arXiv 2407.21783, 3.3.2).
    """
    if case.call.argument(4, "dropout_p", 0.0):
        return whole(case, DROPOUT)
    query, value = case.shapes[0], case.results[0]
    lead = tuple(
        HEADS if axis == 1 and len(value) == 4 else str(axis) for axis in range(len(value) - 2)
    )
    draft = case.reads((*lead, QUERIES, None))
    for slot in range(1, 3):
        draft.read(slot, (*lead, None, None))
    mask = case.slot(3, "attn_mask")
    if mask is not None:
        shape = case.shapes[mask]
        count = max(0, len(shape) - 2)
        pairs = zip(
            shape[:count], value[len(lead) - count :], lead[len(lead) - count :], strict=False
        )
        known = tuple(label if size == n else None for size, n, label in pairs)
        rows = QUERIES if len(shape) > 1 and shape[-2] == query[-2] else None
        draft.read(mask, (*known, rows, None)[-len(shape) :])
    flops = 4.0 * math.prod(value[:-1]) * case.shapes[1][-2] * query[-1]
    causal = bool(case.call.argument(5, "is_causal", False))
    run = _of_queries if causal else None
    return draft.rule("attention", (*lead, QUERIES, None), flops=flops, run=run)


def _of_queries(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
    """A part of the queries, which see the keys up to their own place.

    On paper a part has the keys of the last one, which all wait for.
    """
    parts = share.parts(QUERIES)
    if parts == 1:
        made: torch.Tensor = call.function(*args, **kwargs)
        return made
    given = dict(zip(SDPA, args, strict=False)) | kwargs
    query, count = given["query"], given["query"].shape[-2]
    place = parts - 1 if isinstance(query, FakeTensor) else share.index(QUERIES)
    end = (place + 1) * count
    given |= {name: given[name][..., :end, :] for name in ("key", "value")}
    rows = torch.arange(end - count, end, device=query.device).unsqueeze(1)
    seen = rows >= torch.arange(given["key"].shape[-2], device=query.device)
    made = call.function(**given | {"attn_mask": seen, "is_causal": False})
    return made


def multi_head_attention(case: Case) -> Rule:
    """The whole of `nn.MultiheadAttention`, [positions, batch, features]: along the batch.

    Along the heads as well where the projections of queries, keys and values are packed.
    """
    if case.call.argument(10, "dropout_p", 0.0) and case.call.argument(13, "training", True):
        return whole(case, DROPOUT)
    if len(case.shapes[0]) != 3:
        return whole(case, "attention without a batch")
    draft = RuleDraft(case)
    for slot in range(3):
        draft.read(slot, (None, "1", None))
    draft.read(case.slot(14, "key_padding_mask"), ("1", None))
    made: list[Axes] = [(None, "1", None)]
    if len(case.results) == 2:
        made.append(("1", *(None,) * (len(case.results[1]) - 1)))
    rows, width = math.prod(case.results[0]), case.shapes[0][-1]
    flops = 8.0 * rows * width + 4.0 * rows * case.shapes[1][0]
    rule = draft.rule("attention", *made, flops=flops)
    return _with_heads(case, rule) if _plain(case) else rule


def _plain(case: Case) -> bool:
    """Whether heads can be split: one packed projection, one mask for all heads."""
    call = case.call
    mask = case.shape(16, "attn_mask")
    others = (call.argument(i, name) for i, name in ((7, "bias_k"), (8, "bias_v")))
    return (
        isinstance(call.argument(5, "in_proj_weight"), CallRef)
        and not any(isinstance(x, CallRef) for x in others)
        and not call.argument(9, "add_zero_attn", False)
        and case.slot(14, "key_padding_mask") is None
        and (mask is None or len(mask) == 2)
        and call.argument(19, "average_attn_weights", True)
    )


def _with_heads(case: Case, rule: Rule) -> Rule:
    """The input projection's three groups, and the columns of the output projection."""
    axes = list(rule.reads)
    for position, name, labels in (
        (5, "in_proj_weight", (f"{HEADS}|3", None)),
        (6, "in_proj_bias", (f"{HEADS}|3",)),
        (11, "out_proj_weight", (None, HEADS)),
    ):
        slot = case.slot(position, name)
        if slot is not None:
            axes[slot] = labels
    heads = int(case.call.argument(4, "num_heads"))
    return replace(rule, extents={**rule.extents, HEADS: heads}, reads=tuple(axes), run=_by_heads)


NAMES = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias",
    "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    "training", "key_padding_mask", "need_weights", "attn_mask",
)  # fmt: skip


def _by_heads(call: LayerCall, args: Any, kwargs: Any, share: Share) -> Any:
    """Some of the heads; the output is a sum over devices, the bias is added by the first."""
    parts = share.parts(HEADS)
    if parts == 1:
        return call.function(*args, **kwargs)
    given = dict(zip(NAMES, args, strict=False)) | kwargs
    x, heads = given["query"], given["num_heads"]
    length, batch, width = x.shape
    q, k, v = _projected(given, heads // parts, width // heads)
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:  # True: not to be looked at
        mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask, float("-inf"))
    weights = None
    if given.get("need_weights", True):
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        scores = torch.softmax(scores if mask is None else scores + mask, -1)
        y, weights = scores @ v, scores.sum(1) / heads
    else:
        y = functional.scaled_dot_product_attention(q, k, v, mask)
    bias = given["out_proj_bias"]
    bias = None if bias is None else bias * float(share.index(HEADS) == 0)
    joined = y.permute(2, 0, 1, 3).reshape(length, batch, width // parts)
    return functional.linear(joined, given["out_proj_weight"], bias), weights


def _projected(given: dict[str, Any], heads: int, features: int) -> list[torch.Tensor]:
    """Queries, keys and values of some heads. [batch, heads, positions, features]"""
    weights = given["in_proj_weight"].chunk(3)
    bias = given["in_proj_bias"]
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    made = []
    for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        x = given[name]
        y = functional.linear(x, weight, bias).view(*x.shape[:2], heads, features)
        made.append(y.permute(1, 2, 0, 3))
    return made


ATTENTION_RULES: dict[str, Callable[[Case], Rule]] = {
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
}
