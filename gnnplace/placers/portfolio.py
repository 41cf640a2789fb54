"""``portfolio``: runs the cheap placers, keeps the best, gives what budget is left to annealing.

Nobody ever gets worse than one device: ``single`` is among them, and a placer that fails or finds
nothing feasible is passed over. Complexity: the sum of its members'.
"""

from __future__ import annotations

import time

import numpy as np

from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.placers.annealing import anneal
from gnnplace.placers.base import Found, Placer
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

CHEAP: tuple[type[Placer], ...] = (
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


class Portfolio(Placer):
    """The best of the cheap placers, improved by annealing where the budget allows."""

    name = "portfolio"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        best = self.best_of_all(space, rng)
        if time.perf_counter() >= deadline:
            return best
        improved = anneal(space, best, rng, deadline)
        if space.score(improved.device, improved.order) < space.score(best.device, best.order):
            return Found(improved.device, improved.order, f"{best.note}, then annealing")
        return best

    def best_of_all(self, space: SearchSpace, rng: np.random.Generator) -> Found:
        """The best construction by score, after memory repair.

        Raises:
            InfeasibleError: no member found a placement that runs and fits.
        """
        tried: list[tuple[float, int, Found]] = []
        for i, kind in enumerate(CHEAP):
            found = run_member(kind(), space, rng)
            if found is not None:
                tried.append((space.score(found.device, found.order), i, found))
        if not tried:
            raise InfeasibleError("placer 'portfolio' found no feasible placement")
        return min(tried, key=lambda entry: entry[:2])[2]


def run_member(
    placer: Placer, space: SearchSpace, rng: np.random.Generator, deadline: float = 0.0
) -> Found | None:
    """A member's repaired placement, named; None where it cannot or finds nothing that runs."""
    if placer.supports(space.problem) is not None:
        return None
    try:
        found = placer.search(space, rng, deadline)
    except GnnplaceError:
        return None
    device, order = repair(space, found.device, found.order)
    return Found(device, order, f"{placer.name}{': ' + found.note if found.note else ''}")
