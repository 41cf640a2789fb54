"""``portfolio``: runs the cheap placers, keeps the best, gives what budget is left to annealing.

Nobody ever gets worse than one device: ``single`` is among them, and a placer that fails or finds
nothing feasible is passed over.
Complexity: the sum of its members'.
"""

from __future__ import annotations

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.constructions import best_construction
from gnnplace.placers.search.annealing import anneal
from gnnplace.placers.search.clock import NO_BUDGET, expired
from gnnplace.placers.search.space import SearchSpace


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
