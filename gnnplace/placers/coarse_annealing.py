"""``coarse-annealing``: the portfolio and annealing on a coarse problem, refined on the fine one.

Half of the budget goes to the problem with about ``GROUPS`` groups (``coarse_problem``): its
simulation takes a fraction of the time, and its moves move whole parts of the graph. What was
found there is projected: an op goes where its group is, in the group's place of the order or as
list scheduling orders it; annealing of the fine problem has the rest. Where there is nothing to
group this is ``annealing``. The scheme is multilevel refinement (Karypis and Kumar, 1998; for
annealing: Walshaw, 2004). Complexity: coarsening, then as ``annealing``.
"""

from __future__ import annotations

import numpy as np

from gnnplace.placers.annealing import Annealing, anneal
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.clock import share_of
from gnnplace.placers.coarse_problem import CoarseProblem, coarse_problem
from gnnplace.placers.repair import repair
from gnnplace.placers.search_space import SearchSpace

GROUPS = 200
COARSE_SHARE = 0.5


class CoarseAnnealing(Placer):
    """Annealing on groups, then on ops."""

    name = "coarse-annealing"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        half = share_of(deadline, COARSE_SHARE)
        coarse = coarse_problem(space.problem, GROUPS)
        if coarse is None:
            return Annealing().search(space, rng, deadline)
        found = Annealing().search(SearchSpace(coarse.problem), rng, half)
        start = projected(space, coarse, found, deadline)
        refined = anneal(space, start, rng, deadline)
        note = f"{coarse.problem.num_ops} groups: {found.note}; then {refined.note}"
        return Found(refined.device, refined.order, note)


def projected(space: SearchSpace, coarse: CoarseProblem, found: Found, deadline: float) -> Found:
    """A placement of the groups as one of the ops, repaired, in the best order known for it."""
    device = found.device[coarse.group]
    own = coarse.fine_order(space.problem, found.order)
    priority = np.empty(len(own))
    priority[own] = -np.arange(len(own), dtype=np.float64)
    score, order = space.sequence(device, [priority])
    order = own if space.score(device, own) < score else order
    return Found(*repair(space, device, order, deadline))
