"""All constructions of the room within one budget, and the best of them.

Without a budget each runs whole. With one they run cheapest first: ``contiguous`` and
``interleaved`` once without moving cuts, and again as they are at the end. Each may use an equal
part of what is left, so that what the quick ones leave goes to those that go on improving; those
whose turn comes after the deadline are left out, and the note names them. The first always runs.
Complexity: the sum of the members'.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gnnplace.errors import GnnplaceError
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.clock import NO_BUDGET, expired, share_of
from gnnplace.placers.contiguous import Contiguous
from gnnplace.placers.etf import Etf
from gnnplace.placers.expert import Expert
from gnnplace.placers.heft import Heft, HeftContention
from gnnplace.placers.interleaved import Interleaved
from gnnplace.placers.m_topo import MTopo
from gnnplace.placers.min_cut import MinCut
from gnnplace.placers.repair import repair
from gnnplace.placers.round_robin import RoundRobin
from gnnplace.placers.search_space import SearchSpace
from gnnplace.placers.single import Single

WHOLE: tuple[Callable[[], Placer], ...] = (
    Single,
    RoundRobin,
    Contiguous,
    Interleaved,
    Expert,
    Heft,
    HeftContention,
    Etf,
    MTopo,
    MinCut,
)
CHEAPEST_FIRST: tuple[Callable[[], Placer], ...] = (
    Single,
    partial(Contiguous, moves=False),
    HeftContention,
    MinCut,
    partial(Interleaved, moves=False),
    Heft,
    Etf,
    RoundRobin,
    MTopo,
    Expert,
    Contiguous,
    Interleaved,
)


def best_construction(
    space: SearchSpace, rng: np.random.Generator, deadline: float = NO_BUDGET
) -> Found:
    """The best construction by score, after memory repair; its note says whose it is.

    Args:
        space: the problem's search space.
        rng: for members that draw.
        deadline: when to be back; ``NO_BUDGET``: after all members.

    Where nothing runs or fits, what comes back does not either: ``Placer.place`` says why.
    """
    tried: list[tuple[float, int, Found]] = []
    missed: list[str] = []
    members = WHOLE if deadline <= NO_BUDGET else CHEAPEST_FIRST
    for i, make in enumerate(members):
        member = make()
        if tried and expired(deadline):
            missed.append(member.name)
            continue
        found = run_member(member, space, rng, share_of(deadline, 1 / (len(members) - i)))
        if found is not None:
            tried.append((space.score(found.device, found.order), i, found))
    best = min(tried, key=lambda entry: entry[:2])[2]
    return Found(best.device, best.order, best.note + _left_out(missed))


def _left_out(names: list[str]) -> str:
    return f" (no time for {', '.join(dict.fromkeys(names))})" if names else ""


def run_member(
    placer: Placer, space: SearchSpace, rng: np.random.Generator, deadline: float = NO_BUDGET
) -> Found | None:
    """A member's repaired placement, named; None where it cannot or finds nothing that runs."""
    if placer.supports(space.problem) is not None:
        return None
    try:
        found = placer.search(space, rng, deadline)
    except GnnplaceError:
        return None
    device, order = repair(space, found.device, found.order, deadline)
    return Found(device, order, f"{placer.name}{': ' + found.note if found.note else ''}")
