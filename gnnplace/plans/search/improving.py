"""Better orders of actions, by search over the rules of the list schedule.

What a rank may have in flight, and what it prefers, is changed for one chunk or for all at once; a
change is kept if the step takes no longer and every device still holds what is in flight. Where the
memory is full, fewer in flight make room for less recomputation, and the stages are fitted again.
Gradients of weights are apart in every order that is searched. One change takes one pass over the
actions (`listing`). The changes are drawn from a fixed seed, so that more time only goes on where
less stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from gnnplace.plans.order.orders import SEARCHED, Rules, is_apart, listed_by
from gnnplace.plans.search.draft import Draft, Priced, fitted
from gnnplace.plans.search.stage import Pricer

CHANGES = 2000  # for each plan
TOGETHER = 20  # changes between two looks at the clock
FEWER = (-2, -1, 1, 2, 4)  # micro-batches in flight, more or less than usual, for all chunks
Keep = Callable[[Draft], Priced | None]


def improved(
    plans: Sequence[Priced], pricer_of: Callable[[int], Pricer], keep: Keep
) -> Iterator[None]:
    """Looks for better orders of plans, a few changes at a time.

    Args:
        plans: the fastest first.
        pricer_of: prices stages of micro-batches of a size.
        keep: is given what is better.
    """
    walks = [
        _walk(priced, pricer_of(priced.draft.size), keep)
        for priced in plans
        if len(priced.chunks) > 1
    ]
    while walks:
        for walk in list(walks):
            if next(walk, 0) is not None:
                walks.remove(walk)
            yield


def _walk(priced: Priced, pricer: Pricer, keep: Keep) -> Iterator[None]:
    """Starts of several depths, then changes of the best of them."""
    starts = [priced] if is_apart(priced.draft.schedule) else []
    for more in (0, *FEWER):
        draft = _deeper(priced.draft, more)
        made = None if draft is None else fitted(pricer, draft)
        start = None if made is None else keep(made)
        starts += [start] if start is not None else []
        yield
    if not starts:
        return
    best = min(starts, key=lambda x: x.step_time)
    rng = np.random.default_rng(0)
    for _ in range(CHANGES // TOGETHER):
        best = _changed(best, rng, keep)
        yield


def _deeper(draft: Draft, more: int) -> Draft | None:
    """The draft with weight gradients apart and more in flight; nothing recomputed yet."""
    name = "v" if draft.schedule.startswith("v") else "zero-bubble"
    if draft.schedule.startswith("interleaved"):
        return None
    limit = tuple(min(max(x + more, 1), draft.microbatches) for x in draft.limit)
    if more and limit == draft.limit:
        return None
    no = (False,) * len(limit)
    stages = tuple(replace(s, recompute=frozenset()) for s in draft.stages)
    rules = Rules(limit, no, no)
    return replace(draft, schedule=f"{name}:{SEARCHED}", stages=stages, rules=rules)


def _changed(best: Priced, rng: np.random.Generator, keep: Keep) -> Priced:
    """A plan after some changes; those that help are kept."""
    draft = best.draft
    if draft.rules is None:
        no = (False,) * len(draft.stages)
        draft = replace(draft, rules=Rules(draft.limit, no, no))
    assert draft.rules is not None
    rules, least = draft.rules, best.step_time
    room = _room(best)
    for _ in range(TOGETHER):
        other = _other(rules, room, draft.microbatches, rng)
        seconds, _ = listed_by(best.line, other, best.ends)
        if seconds <= least:
            rules, least = other, seconds
    if least >= best.step_time * (1 - 1e-9):
        return best
    name = draft.schedule.partition(":")[0]
    found = keep(replace(draft, schedule=f"{name}:{SEARCHED}", rules=rules))
    return found if found is not None and found.step_time < best.step_time else best


def _room(priced: Priced) -> list[int]:
    """Micro-batches that each chunk may have in flight, by what memory its rank has left. [C]"""
    found = []
    for c, rank in enumerate(priced.draft.ranks):
        left = priced.memory[rank] - priced.held(rank)
        more = left / max(priced.costs[c].saved, 1e-9)
        found.append(priced.flying[c] + int(min(max(more, 0.0), priced.draft.microbatches)))
    return found


def _other(rules: Rules, room: Sequence[int], most: int, rng: np.random.Generator) -> Rules:
    """Rules with one change."""
    chunk, kind = int(rng.integers(len(rules.limit))), int(rng.integers(4))
    if kind < 2:
        by = int(rng.choice([-2, -1, 1, 2]))
        limit = list(rules.limit)
        limit[chunk] = max(1, min(limit[chunk] + by, room[chunk], most))
        return replace(rules, limit=tuple(limit))
    name = "late" if kind == 2 else "weights"
    flags = list(getattr(rules, name))
    flags[chunk] = not flags[chunk]
    return replace(rules, **{name: tuple(flags)})
