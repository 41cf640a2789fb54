"""All constructions of the room within one budget, and the best of them.

Without a budget each runs whole. With one they run cheapest first: ``contiguous`` and
``interleaved`` once without moving cuts, and again as they are at the end. Each may use an equal
part of what is left, so that what the quick ones leave goes to those that go on improving; those
whose turn comes after the deadline are left out, and the note names them. The first always runs.
Memory is repaired last then, the least excess first, where a placement that does not fit yet would
be quicker than the best that does: repairs take longer than constructions.
Complexity: the sum of the members'.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gnnplace.errors import GnnplaceError
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.contiguous import Contiguous
from gnnplace.placers.etf import Etf
from gnnplace.placers.expert import Expert
from gnnplace.placers.heft import Heft, HeftContention
from gnnplace.placers.interleaved import Interleaved
from gnnplace.placers.m_topo import MTopo
from gnnplace.placers.min_cut import MinCut
from gnnplace.placers.round_robin import RoundRobin
from gnnplace.placers.row import Row, Speed
from gnnplace.placers.single import Single
from gnnplace.search.annealing import anneal
from gnnplace.search.clock import NO_BUDGET, expired, share_of
from gnnplace.search.repair import repair
from gnnplace.search.space import SearchSpace

BEFORE_ANNEALING = 1 / 3  # of the time, where annealing follows
BEFORE_REPAIR = 1 / 2  # of the time, where memory matters
REPAIR_SHARE = 1 / 2  # of what is left, each
CONSTRUCTIONS = (
    # Milliseconds on 1,000 ops and 8 devices: cheaper ones run first where time is short.
    Row("single", Single, Speed.CONSTRUCTION, 1, executed=True),
    Row("round-robin", RoundRobin, Speed.CONSTRUCTION, 8),
    Row(
        "contiguous",
        Contiguous,
        Speed.CONSTRUCTION,
        2,
        quick=partial(Contiguous, moves=False),
        executed=True,
    ),
    Row("interleaved", Interleaved, Speed.CONSTRUCTION, 5, quick=partial(Interleaved, moves=False)),
    Row("expert", Expert, Speed.CONSTRUCTION, 10, executed=True),
    Row("heft", Heft, Speed.CONSTRUCTION, 6),
    Row("heft-contention", HeftContention, Speed.CONSTRUCTION, 3, executed=True),
    Row("etf", Etf, Speed.CONSTRUCTION, 7),
    Row("m-topo", MTopo, Speed.CONSTRUCTION, 9),
    Row("min-cut", MinCut, Speed.CONSTRUCTION, 4),
)


def cheapest_first() -> list[Callable[[], Placer]]:
    """Constructions by their cost, in quick variants; whole variants of these at the end."""
    rows = sorted(CONSTRUCTIONS, key=lambda row: row.cost)
    return [*(row.quick or row.make for row in rows), *(row.make for row in rows if row.quick)]


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
    if deadline > NO_BUDGET:
        return _best_in_time(space, rng, deadline)
    found = [run_member(row.make(), space, rng) for row in CONSTRUCTIONS]
    return min((f for f in found if f is not None), key=lambda f: space.score(f.device, f.order))


def annealed_construction(
    space: SearchSpace, rng: np.random.Generator, deadline: float = NO_BUDGET
) -> Found:
    """The best construction, found in a part of the time and annealed in the rest."""
    start = best_construction(space, rng, share_of(deadline, BEFORE_ANNEALING))
    found = anneal(space, start, rng, deadline)
    return Found(found.device, found.order, f"{start.note}, then {found.note}")


def _best_in_time(space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
    found: list[Found] = []
    missed: list[str] = []
    until = share_of(deadline, BEFORE_REPAIR) if space.memory_matters else deadline
    members = cheapest_first()
    for i, make in enumerate(members):
        member = make()
        if found and expired(until):
            missed.append(member.name)
            continue
        one = _searched(member, space, rng, share_of(until, 1 / (len(members) - i)))
        found += [one] if one is not None else []
    best = _best_repaired(space, found, deadline)
    return Found(best.device, best.order, best.note + _left_out(missed))


def _best_repaired(space: SearchSpace, found: list[Found], deadline: float) -> Found:
    """The best by score, after repairs of those that do not fit, the least excess first."""
    best = min(found, key=lambda f: space.score(f.device, f.order))
    if not space.memory_matters:
        return best
    for one in sorted(found, key=lambda f: space.score(f.device, f.order)):
        score = space.score(best.device, best.order)
        seconds, excess = space.simulator.excess(one.device, one.order)
        if excess == 0 or seconds >= score or expired(deadline):
            continue
        repaired = repair(space, one.device, one.order, share_of(deadline, REPAIR_SHARE))
        if space.score(*repaired) < score:
            best = Found(*repaired, one.note)
    return best


def _left_out(names: list[str]) -> str:
    return f" (no time for {', '.join(dict.fromkeys(names))})" if names else ""


def run_member(
    placer: Placer, space: SearchSpace, rng: np.random.Generator, deadline: float = NO_BUDGET
) -> Found | None:
    """A member's repaired placement, named; None where it cannot or finds nothing that runs."""
    found = _searched(placer, space, rng, deadline)
    if found is None:
        return None
    return Found(*repair(space, found.device, found.order, deadline), found.note)


def _searched(
    placer: Placer, space: SearchSpace, rng: np.random.Generator, deadline: float
) -> Found | None:
    """A member's placement, named; it may not fit."""
    if placer.supports(space.problem) is not None:
        return None
    try:
        found = placer.search(space, rng, deadline)
    except GnnplaceError:
        return None
    named = f"{placer.name}{': ' + found.note if found.note else ''}"
    return Found(found.device, found.order, named)
