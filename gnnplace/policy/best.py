"""``best``: the default placer. The portfolio's constructions, the learned placer and annealing.

The constructions run first, then the learned placer's first choice, which also starts from them.
Then the learned placer's local search (on large problems also on groups of ops) and annealing take
turns from the best placement so far. Their cycles grow longer, so that a larger budget only
continues where a smaller one stops. With a budget, the constructions first run in quick variants;
in full, which takes more than half of their time, they run after the search has done
``WHOLE_BEGIN``. The best placement by simulated step time is the answer, with the name of the
method that found it. It is never worse than one device, because ``single`` is a construction.

On a large problem that the learned placer searches on narrow groups, annealing of the whole graph
finds little, so the learned placer gets all of the time except that of a few constructions: those
that take one list schedule. If there are micro-batches and some start on groups fits into memory,
this is only ``single`` (on twelve such problems the best of the others was 1.4 to 4.5 times as
long).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnnplace.placers import (
    NO_BUDGET,
    Annealer,
    Found,
    Placer,
    SearchSpace,
    best_construction,
    best_member,
    choose_better,
    groups_take_all_time,
    is_expired,
    list_whole_members,
    quick_members,
    read_clock,
    repair,
    run_member,
    run_members,
)

if TYPE_CHECKING:
    from gnnplace.policy.learned import LearnedPlacer
    from gnnplace.policy.search import Anytime, Beside, NarrowBeside

FIRST_DECODE = 4e-6  # seconds an op that the learned placer takes for its first answer
SINGLE_SCHEDULES = ("single", "heft-contention", "heft", "etf", "expert", "m-topo")
LOCAL_COST = 2  # moves of annealing in the time of one of its local search
# Moves times ops of the local search before constructions of the whole problem begin.
WHOLE_BEGIN = 5_000_000


class Best(Placer):
    """Portfolio and learned placer within one budget.

    Args:
        learned: the learned placer to include.
    """

    name = "best"

    def __init__(self, learned: LearnedPlacer) -> None:
        self.learned = learned

    def missing_part(self) -> str:
        return self.learned.missing

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        self.learned.missing = ""

        # A large problem: constructions, then a search on groups of ops.
        if (
            deadline > NO_BUDGET
            and _has_time(space, deadline)
            and groups_take_all_time(space)
        ):
            narrow = self.learned.narrow_search(space, rng)  # against constructions
            single = space.problem.microbatches > 1 and narrow.fits
            schedules = ("single",) if single else SINGLE_SCHEDULES
            best = best_construction(space, rng, deadline, schedules)
            on_groups = self.learned.search_groups(space, narrow, rng, deadline)
            return choose_better(space, best, _repair(space, on_groups, deadline))

        # No budget: the better of a construction and the learned placer's first choice.
        if deadline <= NO_BUDGET:
            best = best_construction(space, rng)
            learned = run_member(self.learned, space, rng, deadline)
            return best if learned is None else choose_better(space, best, learned)

        # Otherwise quick constructions, the first choice, and searches by turns while time is left.
        placements, missed = run_members(space, rng, deadline, quick_members())
        best = best_member(space, placements, missed, deadline)
        if not _has_time(space, deadline):
            return best
        if not np.isfinite(space.score(best.device, best.order)):
            learned = run_member(self.learned, space, rng, deadline)
            return best if learned is None else choose_better(space, best, learned)
        first = self.learned.first_choice(space, deadline, placements)
        best = choose_better(space, best, _repair(space, first.found, deadline))
        if not first.search_has_time(deadline):
            return best
        groups = self.learned.beside(space, rng)
        return _search_by_turns(space, first.search(rng), groups, best, rng, deadline)


def _search_by_turns(
    space: SearchSpace,
    local: Anytime,
    groups: Beside | NarrowBeside,
    best: Found,
    rng: np.random.Generator,
    deadline: float,
) -> Found:
    """Search locally, also on groups, and anneal by turns, always from the best of all.

    Whole variants of constructions run once when the search has done `WHOLE_BEGIN`.
    """
    annealer = Annealer(space, best, rng)
    finders = [best.note]
    construction_members = list_whole_members(space.problem.num_ops)
    while not is_expired(deadline):
        local.offer(annealer.found(), annealer.score)
        while local.moves * LOCAL_COST <= annealer.moves and not is_expired(deadline):
            local.cycle(deadline)
            groups.turn(local, deadline)
        if local.score < annealer.score:
            annealer.offer(local.found(), local.score)
            finders.append("learned search")
        annealer.cycle(deadline)
        if annealer.score < local.score:
            finders.append("annealing")
        if (
            construction_members
            and local.ops >= WHOLE_BEGIN
            and not is_expired(deadline)
        ):
            placements, _ = run_members(space, rng, deadline, construction_members)
            construction_members = []
            member = best_member(space, placements, [], deadline)
            score = space.score(member.device, member.order)
            if score < annealer.score:
                annealer.offer(member, score)
                finders.append(member.note)
    last = dict.fromkeys(finders[:0:-1])  # no finder twice, the last one last
    return annealer.answer("; then ".join([finders[0], *reversed(last)]))


def _repair(space: SearchSpace, found: Found, deadline: float) -> Found:
    """Return the learned placer's choice, named, after memory repair."""
    return Found(
        *repair(space, found.device, found.order, deadline), f"learned: {found.note}"
    )


def _has_time(space: SearchSpace, deadline: float) -> bool:
    """Return whether the learned placer can answer until the deadline; always without one."""
    return (
        deadline <= NO_BUDGET
        or read_clock() + FIRST_DECODE * space.problem.num_ops < deadline
    )
