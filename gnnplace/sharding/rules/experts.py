"""The rule of `tracing.experts`: along tokens, over experts, or within each expert.

* tokens: rows are independent, given what the router chose;
* experts: each shard has its own on all tokens, and results add up;
* width: each shard has a part of every expert's features, and results add up (Megatron's split).

What is priced has as many rows for every expert: an imbalance makes the fullest shard slower.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gnnplace.sharding.captured.calls import LayerCall
from gnnplace.sharding.rules.rule import Case, Rule, RuleDraft, Share
from gnnplace.tracing.experts import balanced

TOKENS, EXPERTS, WIDTH = "0", "experts", "width"


def of_experts(case: Case) -> Rule:
    """Of `experts(x, index, weights, up, down, act, first)`."""
    index, up, down = case.shapes[1], case.shapes[3], case.shapes[4]
    draft = RuleDraft(case)
    for slot in range(3):
        draft.read(slot, (TOKENS, None))
    gated = up[1] == 2 * down[2]
    draft.read(3, (EXPERTS, f"{WIDTH}|2" if gated else WIDTH, None))
    draft.read(4, (EXPERTS, None, WIDTH))
    flops = 2.0 * math.prod(index) * (math.prod(up[1:]) + math.prod(down[1:]))
    return draft.rule("experts", (TOKENS, None), flops=flops, run=_part)


def _part(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
    """A device's experts, or its part of each; on paper every expert has as many rows."""
    x, index, weights, up, down, act, _ = args
    parts = share.parts(EXPERTS)
    if isinstance(x, FakeTensor):
        return balanced(x, index, weights, up, down, act, parts)
    made: torch.Tensor = call.function(
        x, index, weights, up, down, act, share.index(EXPERTS) * len(up) if parts > 1 else 0
    )
    return made


EXPERT_RULES = {"experts": of_experts}
