"""The rule of `calls.mixture`: along tokens, over experts, both by dispatch, or within experts.

* tokens: rows are independent, given what the router chose;
* dispatch: each shard has its own tokens and its own experts; rows go to their experts and the
  results come back, an all-to-all each (GShard, Lepikhin et al., 2020, arXiv 2006.16668; without a
  capacity: every row arrives);
* spread: the same where each shard has its own examples;
* experts: each shard has its own experts on all tokens, and results add up;
* width: each shard has a part of every expert's features, and results add up (Megatron's split).

For prices every expert has equally many rows, and a device that has some of the experts has the
mean's rows times `Share.fullest`.
"""

from __future__ import annotations

import math

import torch

from gnnplace.torch_names import FakeTensor
from gnnplace.tracing.calls import GATES, ExpertWeights, LayerCall, balance_experts
from gnnplace.tracing.rules import Exchanged
from gnnplace.tracing.rules.rule import (
    SPREAD,
    Case,
    Keywords,
    Operands,
    Rule,
    RuleDraft,
    Share,
)

TOKENS = "0"
EXPERTS = "experts"
WIDTH = "width"
DISPATCH = "dispatch"


def split_experts(case: Case) -> Rule:
    """Split `experts(x, index, weights, up, down, act, first, up_bias, down_bias)`."""
    index = case.shapes[1]
    up = case.shapes[3]
    down = case.shapes[4]
    draft = RuleDraft(case)
    dispatched = f"{DISPATCH}/{SPREAD}"
    for slot in range(3):
        draft.read(slot, (f"{TOKENS}/{dispatched}", None))
    act = case.call.args[5]
    if act in GATES:
        groups = GATES[act].groups
    else:
        groups = up[1] // down[2]
    inner = f"{WIDTH}|2" if groups == 2 else WIDTH
    draft.read(3, (f"{EXPERTS}/{dispatched}", inner, None))
    draft.read(4, (f"{EXPERTS}/{dispatched}", None, WIDTH))
    draft.read(case.slot(7, "up_bias"), (f"{EXPERTS}/{dispatched}", inner))
    draft.read(case.slot(8, "down_bias"), (f"{EXPERTS}/{dispatched}", None))
    flops = 2.0 * math.prod(index) * (math.prod(up[1:]) + math.prod(down[1:]))
    exchanged = Exchanged(math.prod(index) * case.shapes[0][1], sent=True)
    rows = dict.fromkeys((DISPATCH, SPREAD), exchanged)
    result = (f"{TOKENS}/{dispatched}", None)
    return draft.rule("experts", result, flops=flops, run=_part, exchanges=rows)


def _part(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> torch.Tensor:
    """Run a device's experts, or its part of each; on paper every expert has as many rows."""
    x, index, weights, up, down, act, _, *biases = args
    # The bias is added once, where results add up.
    if share.parts(WIDTH) > 1 and biases and biases[1] is not None:
        biases[1] = biases[1] * float(share.index(WIDTH) == 0)
    experts = ExpertWeights(up, down, act, *biases)
    for label in (DISPATCH, SPREAD):
        if share.parts(label) > 1:
            return _dispatch_tokens(call, x, index, weights, experts, share, label)
    parts = share.parts(EXPERTS)
    if isinstance(x, FakeTensor):
        return balance_experts(x, index, weights, experts, parts / share.fullest)
    result: torch.Tensor = call.function(
        x,
        index,
        weights,
        up,
        down,
        act,
        share.index(EXPERTS) * len(up) if parts > 1 else 0,
        *biases,
    )
    return result


def _dispatch_tokens(
    call: LayerCall,
    x: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    experts: ExpertWeights,
    share: Share,
    label: str,
) -> torch.Tensor:
    """Send a device's tokens through the experts of all devices; on paper as many come as go."""
    parts = share.parts(label)
    num_local_experts = len(experts.up)
    expert_ids = index.flatten()
    is_expert = expert_ids < parts * num_local_experts
    order = torch.argsort(
        torch.where(is_expert, expert_ids, parts * num_local_experts), stable=True
    )
    if isinstance(x, FakeTensor):
        come = order.repeat(math.ceil(share.fullest))[: int(len(order) * share.fullest)]
        rows = x[come // index.shape[1]]
        ones = weights.flatten()[come].unsqueeze(1)
        outputs = balance_experts(rows, expert_ids[come].unsqueeze(1), ones, experts)
        returned = outputs[: len(order)]
    else:
        # Rows to each other shard, by the shard that sends and that which receives.
        order = order[: int(is_expert.sum())]
        rows = x[order // index.shape[1]]
        owner = expert_ids[order] // num_local_experts
        traffic = torch.zeros(parts, parts, dtype=torch.int64, device=x.device)
        traffic[share.index(label)] = torch.bincount(owner, minlength=parts)
        traffic = share.total(traffic, label)
        counts = traffic[share.index(label)].tolist()
        received = traffic[:, share.index(label)].tolist()
        arrived = share.sent(rows, counts, received, label)
        ids = share.sent(
            (expert_ids[order] % num_local_experts).unsqueeze(1),
            counts,
            received,
            label,
        )
        ones = weights.new_ones(ids.shape)
        up, down, act, *biases = experts
        outputs = call.function(arrived, ids, ones, up, down, act, 0, *biases)
        returned = share.sent(outputs, received, counts, label)
    weighted = returned * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(
        0, order // index.shape[1], weighted.to(x.dtype)
    )


EXPERT_RULES = {"experts": split_experts}
