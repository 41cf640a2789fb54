"""All constructions of the room within one budget, and the best of them.

Without a budget each runs whole. With one they run cheapest first: ``contiguous`` and
``interleaved`` once without moving cuts, and again as they are at the end where the graph is small.
Those whose turn comes after the deadline are left out, and the note names them. The first always
runs. Of a large graph the second does too, since the first is one device and takes next to nothing
there, and others are left out as well that would not be back in time, by what those before them
took. Memory is repaired last then, the least excess first, where a placement that does not fit yet
would be quicker than the best that does: repairs take longer than constructions.
Complexity: the sum of the members'.

``portfolio`` is the best of them, and annealing from there with what budget is left: nobody gets
worse than one device, since ``single`` is a member and one that fails or finds nothing feasible is
passed over. ``annealing`` is ``search.annealing`` from the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from gnnplace.errors import GnnplaceError
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.registry import CONSTRUCTIONS
from gnnplace.placers.search.annealing import anneal
from gnnplace.placers.search.repair import repair
from gnnplace.placers.search.space import LARGE, NO_BUDGET, SearchSpace, expired, now

REPAIRED, REPAIRING = 8, 150_000  # placements, and ops simulated for each, where there is a budget
WHOLE = 1_000  # ops above which the whole variants are left out, where there is a budget
COSTS = {row.name: row.cost for row in CONSTRUCTIONS}


def cheapest_first(num_ops: int) -> list[Callable[[], Placer]]:
    """Constructions by their cost, in quick variants; whole variants of these at the end.

    Where there are many ops the whole variants are left out: a search does better in their time.
    """
    rows = sorted(CONSTRUCTIONS, key=lambda row: row.cost)
    whole = [row.make for row in rows if row.quick and num_ops <= WHOLE]
    return [*(row.make_quick for row in rows), *whole]


def best_construction(
    space: SearchSpace,
    rng: np.random.Generator,
    deadline: float = NO_BUDGET,
    names: Collection[str] | None = None,
) -> Found:
    """The best construction by score, after memory repair; its note says whose it is.

    Args:
        space: the problem's search space.
        rng: for members that draw.
        deadline: when to be back; ``NO_BUDGET``: after all members.
        names: those that are tried until the deadline; None: all of them.

    Where nothing runs or fits, what comes back does not either: ``Placer.place`` says why.
    """
    if deadline > NO_BUDGET:
        return _best_in_time(space, rng, deadline, names)
    found = [run_member(row.make(), space, rng) for row in CONSTRUCTIONS]
    return min((f for f in found if f is not None), key=lambda f: space.score(f.device, f.order))


def annealed_construction(
    space: SearchSpace, rng: np.random.Generator, deadline: float = NO_BUDGET
) -> Found:
    """The best construction, annealed in the time that is left."""
    start = best_construction(space, rng, deadline)
    if expired(deadline):
        return start
    found = anneal(space, start, rng, deadline)
    return Found(found.device, found.order, f"{start.note}, then {found.note}")


def _best_in_time(
    space: SearchSpace, rng: np.random.Generator, deadline: float, names: Collection[str] | None
) -> Found:
    found: list[Found] = []
    missed: list[str] = []
    large, rate = space.problem.num_ops > LARGE, 0.0
    for member in (make() for make in cheapest_first(space.problem.num_ops)):
        if names is not None and member.name not in names:
            continue
        begin = now() if large else 0.0
        late = begin + rate * COSTS[member.name] > deadline if large else expired(deadline)
        if len(found) >= (2 if large else 1) and late:
            missed.append(member.name)
            continue
        one = _searched(member, space, rng, deadline)
        found += [one] if one is not None else []
        rate = max(rate, (now() - begin) / COSTS[member.name]) if large else 0.0
    best = _best_repaired(space, found, deadline)
    told = f" (no time for {', '.join(dict.fromkeys(missed))})" if missed else ""
    return Found(best.device, best.order, best.note + told)


def _best_repaired(space: SearchSpace, found: list[Found], deadline: float) -> Found:
    """The best by score, after a few repairs of those that do not fit, the least excess first."""
    scores = [space.score(one.device, one.order) for one in found]
    ranked = np.argsort(scores, kind="stable").tolist()
    best, score, repairs = found[ranked[0]], scores[ranked[0]], 0
    for one in (found[k] for k in ranked):
        if not space.memory_matters or expired(deadline) or repairs == REPAIRED:
            return best
        seconds, excess = space.simulator.excess(one.device, one.order)
        if excess == 0 or seconds >= score:
            continue
        repaired = repair(space, one.device, one.order, deadline, REPAIRING)
        repairs, made = repairs + 1, space.score(*repaired)
        if made < score:
            best, score = Found(*repaired, one.note), made
    return best


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


class Portfolio(Placer):
    """The best of the cheap placers, improved by annealing where the budget allows."""

    name = "portfolio"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        best = best_construction(space, rng, deadline)
        if deadline <= NO_BUDGET or expired(deadline):
            return best
        improved = anneal(space, best, rng, deadline)
        if space.score(improved.device, improved.order) < space.score(best.device, best.order):
            return Found(improved.device, improved.order, f"{best.note}, then annealing")
        return best


class Annealing(Placer):
    """Simulated annealing with a time budget: the rival to fear."""

    name = "annealing"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        return annealed_construction(space, rng, deadline)
