"""The split of a stage over its shards: the fastest that fits into memory, by a price on bytes.

Seconds and bytes of a stage are sums over its segments. With a price on a byte each segment can
therefore choose its split by itself (Lagrange multipliers; Everett, 1963). The least price at which
the stages of a rank fit its devices gives the fastest of all splits that are optimal for some
price. Bytes of state count once, bytes of activations for every micro-batch in flight. Tensors
between segments are whole on every shard or split along the tokens. Complexity: `log2(len(STEPS))`
prices a rank and border; each is one elimination for each kind of segment, whose tables are made
once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gnnplace.plans.search.draft import Draft, list_meshes, realize_draft
from gnnplace.plans.search.stage import Pricer, Stage
from gnnplace.plans.segments.chain import SplitChoice

# Powers of two around the seconds of a step divided by a device's bytes.
STEPS = range(-24, 17, 2)


def with_splits(
    pricer: Pricer,
    draft: Draft,
    choices: Sequence[SplitChoice],
    *,
    regather: bool = False,
) -> Draft:
    """Return a draft whose stages have the splits with which they fit, or else the leanest ones.

    Args:
        pricer: The pricer of the model and the cluster, at the draft's size of micro-batches.
        draft: A draft with recomputation and ZeRO chosen.
        choices: Styles of the splits and borders, each of which is tried.
        regather: Whether a draft that fits no other way may gather again what shards gathered.
    """
    ranks = draft.ranks
    split_stages = []
    for number, choice in enumerate(choices):
        stages = list(draft.stages)
        for rank, mesh in enumerate(list_meshes(draft)):
            chunks = [c for c, r in enumerate(ranks) if r == rank]
            if mesh.shards == 1:
                continue
            plain = replace(choice, step_share=1.0 / draft.microbatches)
            fitting = _fit_rank(
                pricer,
                [draft.stages[c] for c in chunks],
                [draft.limit[c] for c in chunks],
                plain,
            )
            for c, stage in zip(chunks, fitting, strict=True):
                stages[c] = stage
        made_draft = replace(draft, stages=tuple(stages))
        priced = realize_draft(pricer, made_draft)
        if priced is not None:
            split_stages.append(
                (max(priced.lacking[1], 0.0), priced.step_time, number, made_draft)
            )
    if regather and not any(lack == 0.0 for lack, *_ in split_stages):
        lean = [replace(choice, regather=True) for choice in choices]
        return with_splits(pricer, draft, (*choices, *lean))
    if split_stages:
        return min(split_stages)[-1]
    return draft


def _fit_rank(
    pricer: Pricer, stages: Sequence[Stage], flying: Sequence[int], plain: SplitChoice
) -> list[Stage]:
    """Return the stages of one rank at the least price of a byte at which they fit.

    Where none fits, they are at the highest price.

    Args:
        pricer: The pricer of the model and the cluster.
        stages: The stages of the rank.
        flying: Micro-batches that each has in flight.
        plain: The style of the split, without prices of bytes.
    """
    limit = pricer.usable_memory(stages[0].mesh)

    def priced(price: float) -> list[Stage]:
        return [
            replace(
                stage,
                choice=replace(
                    plain,
                    state=price,
                    saved=price * count,
                    zero=stage.zero,
                    replicas=stage.mesh.replicas,
                ),
            )
            for stage, count in zip(stages, flying, strict=True)
        ]

    # Where bytes need no price, the fastest splits are the answer.
    fastest = [replace(stage, choice=plain) for stage in stages]
    costs = [pricer.cost(stage) for stage in fastest]
    used = pricer.held(fastest, flying)
    if used <= limit or not math.isfinite(used):
        return fastest
    # Else bisect on the price; one unit makes all bytes worth all seconds.
    seconds = sum(cost.microbatch for cost in costs if cost is not None)
    unit = 2.0 ** round(math.log2(seconds / used))
    low = 0
    high = len(STEPS)
    while low < high:
        middle = (low + high) // 2
        fits = pricer.held(priced(unit * 2.0 ** STEPS[middle]), flying) <= limit
        low, high = (low, middle) if fits else (middle + 1, high)
    return priced(unit * 2.0 ** STEPS[min(low, len(STEPS) - 1)])
