"""Rules of attention.

A part of the queries has all keys and values: context parallelism with gathered keys, as Llama 3
was trained (arXiv 2407.21783, 3.3.2). Where later keys are hidden the last of n such parts does
2 - 1/n times the mean's work, and all wait for it. In zig-zag (label `zigzag`; Striped Attention,
Brandon et al., 2023, arXiv 2311.09431, has the idea of even work, Megatron-LM and Llama 3 this
order) part i of n attends for the i-th and the i-th last of 2 n equal blocks of queries, which are
equal work for all parts. Deviation: tokens stay in order outside of attention, so that the rest of
the model need not know; queries go to the part that attends for them and the results come back, an
all-to-all each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from gnnplace.torch_names import FakeTensor
from gnnplace.tracing.calls import CallRef, LayerCall
from gnnplace.tracing.rules import Exchanged
from gnnplace.tracing.rules.rule import (
    Axes,
    Case,
    Keywords,
    Operands,
    Rule,
    RuleDraft,
    Share,
    make_unsplit_rule,
)

HEADS = "heads"
QUERIES = "queries"
ZIGZAG = "zigzag"
SDPA = (
    "query",
    "key",
    "value",
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "enable_gqa",
)
DROPOUT = "its dropout draws other numbers on each part"


def attention(case: Case) -> Rule:
    """Split scaled dot products along batch, heads and queries; 4 FLOP a pair and feature."""
    if case.call.argument(4, "dropout_p", 0.0):
        return make_unsplit_rule(case, DROPOUT)
    query = case.shapes[0]
    value = case.results[0]
    lead = tuple(
        HEADS if axis == 1 and len(value) == 4 else str(axis)
        for axis in range(len(value) - 2)
    )
    causal = bool(case.call.argument(5, "is_causal", False))
    allows_zigzag = causal and query[-2] % 2 == 0  # two blocks a part
    if allows_zigzag:
        rows = f"{QUERIES}/{ZIGZAG}"
    else:
        rows = QUERIES
    draft = RuleDraft(case)
    for slot, row_label in enumerate((rows, None, None)):
        # An axis of size one is broadcast: every part reads all of it.
        sizes = case.shapes[slot][:-2]
        pairs = zip(lead[len(lead) - len(sizes) :], sizes, strict=True)
        leading = tuple(label if size > 1 else None for label, size in pairs)
        draft.read(slot, (*leading, row_label, None))
    mask = case.slot(3, "attn_mask")
    if mask is not None:
        draft.read(mask, _mask_axes(case.shapes[mask], query[-2], value, lead))
    flops = 4.0 * math.prod(value[:-1]) * case.shapes[1][-2] * query[-1]
    sent = Exchanged((math.prod(query) + math.prod(value)) // 2, sent=True)
    rule = draft.rule(
        "attention",
        (*lead, rows, None),
        flops=flops,
        run=_attend_part if causal else None,
        exchanges={ZIGZAG: sent},
    )
    extents = dict(rule.extents)
    if ZIGZAG in extents:
        extents[ZIGZAG] //= 2
    return replace(rule, extents=extents, needs_run=(QUERIES,) if causal else ())


def _mask_axes(
    shape: tuple[int, ...], num_queries: int, result: tuple[int, ...], lead: Axes
) -> Axes:
    """Return the labels of a mask, which is broadcast to the leading axes of the result."""
    count = max(0, len(shape) - 2)
    sizes = zip(
        shape[:count],
        result[len(lead) - count :],
        lead[len(lead) - count :],
        strict=False,
    )
    leading = tuple(label if size == full else None for size, full, label in sizes)
    if len(shape) > 1 and shape[-2] == num_queries:
        rows = QUERIES
    else:
        rows = None
    return (*leading, rows, None)[-len(shape) :]


def _attend_part(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> torch.Tensor:
    """Attend for a part of the queries, which see the keys up to their own position.

    On paper a part has the keys of the last one, which all wait for.
    """
    arguments = dict(zip(SDPA, args, strict=False)) | kwargs
    if share.parts(ZIGZAG) > 1:
        return _attend_in_zigzag(call, arguments, share)
    parts = share.parts(QUERIES)
    query = arguments["query"]
    if isinstance(query, FakeTensor):
        place = parts - 1
    else:
        place = share.index(QUERIES)
    result: torch.Tensor = call.function(
        **_from(arguments, query, place * query.shape[-2])
    )
    return result


def _from(arguments: Keywords, query: torch.Tensor, start: int) -> Keywords:
    """Return the arguments of attention for the queries from position `start` on."""
    count = query.shape[-2]
    device = query.device
    on_paper = isinstance(query, FakeTensor)
    key = arguments["key"][..., : start + count, :]
    value = arguments["value"][..., : start + count, :]
    result = arguments | {
        "query": query,
        "key": key,
        "value": value,
        "is_causal": start == 0,
    }
    if start and key.shape[-2] == start + count and (on_paper or device.type == "cuda"):
        # Flash attention, without a mask in memory. On paper the own block counts as a whole one.
        result["attn_mask"] = (
            None if on_paper else causal_lower_right(count, start + count)
        )
    elif start:
        rows = torch.arange(start, start + count, device=device).unsqueeze(1)
        result["attn_mask"] = rows >= torch.arange(key.shape[-2], device=device)
    return result


def _attend_in_zigzag(
    call: LayerCall, arguments: Keywords, share: Share
) -> torch.Tensor:
    """Attend for the i-th and the i-th last of twice as many blocks of queries as parts."""
    parts = share.parts(ZIGZAG)
    place = share.index(ZIGZAG)
    blocks = (place, 2 * parts - 1 - place)  # for which this part attends
    away = [min(block, 2 * parts - 1 - block) for block in (2 * place, 2 * place + 1)]
    home = [block // 2 for block in blocks]
    counts, received = (
        [destinations.count(k) for k in range(parts)] for destinations in (away, home)
    )
    is_reversed = away[0] > away[1]  # rows for the first part come first

    halves = arguments["query"].unflatten(-2, (2, -1)).movedim(-3, 0)
    if is_reversed:
        halves = halves.flip(0)
    else:
        halves = halves.contiguous()
    first, second = share.sent(halves, counts, received, ZIGZAG)
    size = first.shape[-2]
    outputs = (
        call.function(**_from(arguments, first, blocks[0] * size)),
        call.function(**_from(arguments, second, blocks[1] * size)),
    )
    returned = share.sent(torch.stack(outputs), received, counts, ZIGZAG)
    if is_reversed:
        returned = returned.flip(0)
    return returned.movedim(0, -3).flatten(-3, -2)


def multi_head_attention(case: Case) -> Rule:
    """Split all of `nn.MultiheadAttention`, [positions, batch, features], along the batch.

    Along the heads as well if the projections of queries, keys and values are packed.
    """
    if case.call.argument(10, "dropout_p", 0.0) and case.call.argument(
        13, "training", True
    ):
        return make_unsplit_rule(case, DROPOUT)
    if len(case.shapes[0]) != 3:
        return make_unsplit_rule(case, "attention without a batch")
    draft = RuleDraft(case)
    for slot in range(3):
        draft.read(slot, (None, "1", None))
    draft.read(case.slot(14, "key_padding_mask"), ("1", None))
    results: list[Axes] = [(None, "1", None)]
    if len(case.results) == 2:
        results.append(("1", *(None,) * (len(case.results[1]) - 1)))
    rows = math.prod(case.results[0])
    width = case.shapes[0][-1]
    flops = 8.0 * rows * width + 4.0 * rows * case.shapes[1][0]
    rule = draft.rule("attention", *results, flops=flops)
    if _plain(case):
        return _with_heads(case, rule)
    return rule


def _plain(case: Case) -> bool:
    """Return whether heads can be split: one packed projection, one mask for all heads."""
    call = case.call
    mask = case.shape(16, "attn_mask")
    biases = (call.argument(i, name) for i, name in ((7, "bias_k"), (8, "bias_v")))
    return (
        isinstance(call.argument(5, "in_proj_weight"), CallRef)
        and not any(isinstance(x, CallRef) for x in biases)
        and not call.argument(9, "add_zero_attn", False)
        and case.slot(14, "key_padding_mask") is None
        and (mask is None or len(mask) == 2)
        and call.argument(19, "average_attn_weights", True)
    )


def _with_heads(case: Case, rule: Rule) -> Rule:
    """Return the rule with heads: groups of the input projection, columns of the output's."""
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
    return replace(
        rule,
        extents={**rule.extents, HEADS: heads},
        reads=tuple(axes),
        run=_attend_by_heads,
    )


NAMES = (
    "query",
    "key",
    "value",
    "embed_dim_to_check",
    "num_heads",
    "in_proj_weight",
    "in_proj_bias",
    "bias_k",
    "bias_v",
    "add_zero_attn",
    "dropout_p",
    "out_proj_weight",
    "out_proj_bias",
    "training",
    "key_padding_mask",
    "need_weights",
    "attn_mask",
)


def _attend_by_heads(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> object:
    """Attend with some of the heads; outputs are a sum over devices, the first adds the bias."""
    parts = share.parts(HEADS)
    if parts == 1:
        return call.function(*args, **kwargs)
    arguments = dict(zip(NAMES, args, strict=False)) | kwargs
    x = arguments["query"]
    heads = arguments["num_heads"]
    length, batch, width = x.shape
    q, k, v = _project_heads(arguments, heads // parts, width // heads)
    mask = arguments.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:  # True: not to be looked at
        mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask, float("-inf"))
    weights = None
    if arguments.get("need_weights", True):
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        scores = torch.softmax(scores if mask is None else scores + mask, -1)
        y = scores @ v
        weights = scores.sum(1) / heads
    else:
        y = functional.scaled_dot_product_attention(q, k, v, mask)
    bias = arguments["out_proj_bias"]
    if bias is None:
        bias = None
    else:
        bias = bias * float(share.index(HEADS) == 0)
    joined = y.permute(2, 0, 1, 3).reshape(length, batch, width // parts)
    return functional.linear(joined, arguments["out_proj_weight"], bias), weights


def _project_heads(
    arguments: Keywords, heads: int, features: int
) -> list[torch.Tensor]:
    """Return queries, keys and values of some heads. [batch, heads, positions, features]"""
    weights = arguments["in_proj_weight"].chunk(3)
    bias = arguments["in_proj_bias"]
    if bias is None:
        biases = (None,) * 3
    else:
        biases = bias.chunk(3)
    projections = []
    for name, weight, bias in zip(
        ("query", "key", "value"), weights, biases, strict=True
    ):
        x = arguments[name]
        y = functional.linear(x, weight, bias).view(*x.shape[:2], heads, features)
        projections.append(y.permute(1, 2, 0, 3))
    return projections


ATTENTION_RULES: dict[str, Callable[[Case], Rule]] = {
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
}
