"""All constructions of the room within one budget, and the best of them.

Without a budget every construction runs to its end. With a budget they run cheapest first:
``contiguous``, ``interleaved`` and ``expert`` in quick variants, and on small graphs once more in
full at the end. A construction whose turn comes after the deadline is skipped, and the note names
it; the first one always runs. On a large graph the second one always runs too, because the first is
``single``, which takes almost no time there. On a large graph a construction is also skipped if the
time that earlier ones took says that it would miss the deadline, and memory is repaired last:
repairs take longer than constructions. Placements with the least excess are repaired first, and
only those whose step would be faster than the best that fits.
Complexity: the sum of the members'.

``portfolio`` takes the best construction and spends the rest of the budget on annealing from it. It
is never worse than one device, because ``single`` is a member; a member that fails or finds nothing
feasible is skipped. ``annealing`` is ``search.annealing`` from the best construction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from gnnplace.errors import GnnplaceError
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.registry import CONSTRUCTIONS
from gnnplace.placers.search.annealing import anneal
from gnnplace.placers.search.repair import repair
from gnnplace.placers.search.space import (
    LARGE,
    NO_BUDGET,
    SearchSpace,
    is_expired,
    read_clock,
)

# The number of placements, and of ops simulated for each, if there is a budget.
REPAIRED, REPAIRING = (8, 150_000)
# The number of ops above which variants of the whole problem are left out if there is a budget.
WHOLE = 1_000
COSTS = {row.name: row.cost for row in CONSTRUCTIONS}
CHEAPEST_FIRST = sorted(CONSTRUCTIONS, key=lambda row: row.cost)


def quick_members() -> list[Callable[[], Placer]]:
    """Return constructions by their cost, in quick variants."""
    makers: list[Callable[[], Placer]] = []
    for row in CHEAPEST_FIRST:
        makers.append(row.make_quick)
    return makers


def list_whole_members(num_ops: int) -> list[Callable[[], Placer]]:
    """Return the whole variants of constructions that have a quick one, by their cost.

    None where there are many ops: a search does better in their time.
    """
    makers: list[Callable[[], Placer]] = []
    for row in CHEAPEST_FIRST:
        if row.quick and num_ops <= WHOLE:
            makers.append(row.make)
    return makers


def cheapest_first(num_ops: int) -> list[Callable[[], Placer]]:
    """Return quick variants of all constructions by their cost, then the whole variants."""
    return [*quick_members(), *list_whole_members(num_ops)]


def best_construction(
    space: SearchSpace,
    rng: np.random.Generator,
    deadline: float = NO_BUDGET,
    names: Collection[str] | None = None,
) -> Found:
    """Return the best construction by score, after memory repair; its note says whose it is.

    Args:
        space: the problem's search space.
        rng: Random numbers for members that draw.
        deadline: when to be back; ``NO_BUDGET``: after all members.
        names: The members that are tried until the deadline. None: all of them.

    Where nothing runs or fits, what comes back does not either: ``Placer.place`` says why.
    """
    if deadline > NO_BUDGET:
        makers = cheapest_first(space.problem.num_ops)
        placements, missed = run_members(
            space=space,
            rng=rng,
            deadline=deadline,
            makers=makers,
            names=names,
        )
        return best_member(space, placements, missed, deadline)
    candidates = [run_member(row.make(), space, rng) for row in CONSTRUCTIONS]
    candidates += [_repair(space, start, deadline) for start in space.starts]
    return min(
        (f for f in candidates if f is not None),
        key=lambda f: space.score(f.device, f.order),
    )


def anneal_construction(
    space: SearchSpace, rng: np.random.Generator, deadline: float = NO_BUDGET
) -> Found:
    """Return the best construction, annealed in the time that is left."""
    start = best_construction(space, rng, deadline)
    if is_expired(deadline):
        return start
    annealed = anneal(space, start, rng, deadline)
    return Found(annealed.device, annealed.order, f"{start.note}, then {annealed.note}")


def run_members(
    space: SearchSpace,
    rng: np.random.Generator,
    deadline: float,
    makers: Iterable[Callable[[], Placer]],
    names: Collection[str] | None = None,
) -> tuple[list[Found], list[str]]:
    """Return the placements of members, named, and the names of those there was no time for.

    The placements may not fit yet.

    Args:
        space: The problem's search space.
        rng: Random numbers for members that draw.
        deadline: The time to be back. The first member always runs, of a large graph the second
            too.
        makers: What makes the members, in the order in which they run.
        names: The members that count; None: all of them.
    """
    placements: list[Found] = []
    missed: list[str] = []
    large = space.problem.num_ops > LARGE
    rate = 0.0
    for make in makers:
        member = make()
        if names is not None and member.name not in names:
            continue
        begin = read_clock() if large else 0.0
        if large:
            late = begin + rate * COSTS[member.name] > deadline
        else:
            late = is_expired(deadline)
        if len(placements) >= (2 if large else 1) and late:
            missed.append(member.name)
            continue
        placement = _run_search(member, space, rng, deadline)
        placements += [placement] if placement is not None else []
        if large:
            rate = max(rate, (read_clock() - begin) / COSTS[member.name])
        else:
            rate = 0.0
    return placements, missed


def best_member(
    space: SearchSpace, placements: list[Found], missed: list[str], deadline: float
) -> Found:
    """Return the best placement after memory repair; its note names the members missed."""
    best = _find_best_repaired(space, [*placements, *space.starts], deadline)
    if missed:
        omission = f" (no time for {', '.join(dict.fromkeys(missed))})"
    else:
        omission = ""
    return Found(best.device, best.order, best.note + omission)


def _find_best_repaired(
    space: SearchSpace, found: list[Found], deadline: float
) -> Found:
    """Return the best by score, after a few repairs of those that do not fit, the least excess
    first.
    """
    scores = [space.score(one.device, one.order) for one in found]
    ranked = np.argsort(scores, kind="stable").tolist()
    best = found[ranked[0]]
    score = scores[ranked[0]]
    repairs = 0
    for one in (found[k] for k in ranked):
        if not space.memory_matters or is_expired(deadline) or repairs == REPAIRED:
            return best
        seconds, excess = space.simulator.excess(one.device, one.order)
        if excess == 0 or seconds >= score:
            continue
        repaired = repair(
            space=space,
            device=one.device,
            order=one.order,
            deadline=deadline,
            most_ops=REPAIRING,
        )
        repairs = repairs + 1
        repaired_score = space.score(*repaired)
        if repaired_score < score:
            best = Found(*repaired, one.note)
            score = repaired_score
    return best


def run_member(
    placer: Placer,
    space: SearchSpace,
    rng: np.random.Generator,
    deadline: float = NO_BUDGET,
) -> Found | None:
    """Return a member's repaired placement, named; None where it cannot or finds nothing
    that runs.
    """
    placement = _run_search(placer, space, rng, deadline)
    if placement is None:
        return None
    return _repair(space, placement, deadline)


def _repair(space: SearchSpace, found: Found, deadline: float) -> Found:
    """Return a placement after memory repair."""
    return Found(*repair(space, found.device, found.order, deadline), found.note)


def _run_search(
    placer: Placer, space: SearchSpace, rng: np.random.Generator, deadline: float
) -> Found | None:
    """Return a member's placement, named; it may not fit."""
    if placer.supports(space.problem) is not None:
        return None
    try:
        placement = placer.search(space, rng, deadline)
    except GnnplaceError:
        return None
    named = f"{placer.name}{': ' + placement.note if placement.note else ''}"
    return Found(placement.device, placement.order, named)


class Portfolio(Placer):
    """The best of the cheap placers, improved by annealing where the budget allows."""

    name = "portfolio"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        best = best_construction(space, rng, deadline)
        if deadline <= NO_BUDGET or is_expired(deadline):
            return best
        improved = anneal(space, best, rng, deadline)
        if space.score(improved.device, improved.order) < space.score(
            best.device, best.order
        ):
            return Found(
                improved.device, improved.order, f"{best.note}, then annealing"
            )
        return best


class Annealing(Placer):
    """Simulated annealing with a time budget: the rival to fear."""

    name = "annealing"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        return anneal_construction(space, rng, deadline)
