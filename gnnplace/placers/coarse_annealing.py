"""``coarse-annealing``: the portfolio and annealing on a coarse problem, refined on the fine one.

A sixth of the budget goes to constructions, half of the rest to a problem of groups
(``coarse_problem``): its simulation takes a fraction of the time, and its moves move whole parts of
the graph. What was found there is projected: an op goes where its group is, in the group's place of
the order or as list scheduling orders it. Annealing of the fine problem from the better of both has
what is left. ``GROUPS`` groups, times the root of the number of micro-batches: they share the
groups, and with equally many in all a share of eight would have too few to place. Where there is
nothing to group, or no time to, this is ``annealing``. The scheme is multilevel refinement
(Karypis and Kumar, 1998; Walshaw, 2004). Complexity: coarsening, then as ``annealing``.
"""

from __future__ import annotations

import time

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.constructions import annealed_construction, best_construction
from gnnplace.search.annealing import anneal
from gnnplace.search.clock import NO_BUDGET, share_of
from gnnplace.search.coarse_problem import CoarseProblem, coarse_problem
from gnnplace.search.repair import repair
from gnnplace.search.space import SearchSpace

GROUPS = 200
CONSTRUCTION_SHARE = 1 / 6
COARSE_SHARE = 1 / 2  # of what is left
GROUPING_SHARE = 1 / 3
SECONDS_AN_OP = 5e-5  # of one micro-batch, that grouping takes; 2,000 to 64,000 ops


class CoarseAnnealing(Placer):
    """Annealing on groups, then on ops."""

    name = "coarse-annealing"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        count = int(GROUPS * space.problem.microbatches**0.5)
        coarse = coarse_problem(space.problem, count) if has_time(space, deadline) else None
        if coarse is None:
            return annealed_construction(space, rng, deadline)
        fine = best_construction(space, rng, share_of(deadline, CONSTRUCTION_SHARE))
        half = share_of(deadline, COARSE_SHARE)
        found = annealed_construction(SearchSpace(coarse.problem), rng, half)
        start = projected(space, coarse, found, share_of(deadline, COARSE_SHARE))
        note = f"{coarse.problem.num_ops} groups: {found.note}"
        if space.score(fine.device, fine.order) < space.score(start.device, start.order):
            start, note = fine, fine.note
        refined = anneal(space, start, rng, deadline)
        return Found(refined.device, refined.order, f"{note}; then {refined.note}")


def has_time(space: SearchSpace, deadline: float) -> bool:
    """Whether grouping takes less than ``GROUPING_SHARE`` of the budget; always without one."""
    if deadline <= NO_BUDGET:
        return True
    seconds = SECONDS_AN_OP * space.problem.num_ops / space.problem.microbatches
    return time.perf_counter() + seconds < share_of(deadline, GROUPING_SHARE)


def projected(space: SearchSpace, coarse: CoarseProblem, found: Found, deadline: float) -> Found:
    """A placement of the groups as one of the ops, repaired, in the best order known for it."""
    device = found.device[coarse.group]
    own = coarse.fine_order(space.problem, found.order)
    priority = np.empty(len(own))
    priority[own] = -np.arange(len(own), dtype=np.float64)
    score, order = space.sequence(device, [priority])
    order = own if space.score(device, own) < score else order
    return Found(*repair(space, device, order, deadline))
