"""``best``: the default placer. The portfolio's constructions and the learned placer, then
annealing.

The constructions may use a quarter of the budget, the learned placer half of what they leave;
annealing from the best of all has the rest. It keeps the best by simulated step time and says
who found it; ``single`` is among the constructions, so nobody gets worse than one device.
On a large problem that the learned placer searches on narrow groups nearly all is its share: the
constructions and the annealing of the whole graph find little there.
"""

from __future__ import annotations

import time

import numpy as np

from gnnplace.placers import Found, Placer, SearchSpace
from gnnplace.placers.constructions import best_construction, run_member
from gnnplace.search.annealing import anneal
from gnnplace.search.clock import share_of
from gnnplace.search.narrow_problem import narrow_problem

CONSTRUCTION_SHARE, LEARNED_SHARE = 1 / 4, 1 / 2  # of what is left of a budget
ON_GROUPS = 1 / 10, 9 / 10  # the same where the learned placer searches on groups


class Best(Placer):
    """Portfolio and learned placer within one budget.

    Args:
        learned: the learned placer to include.
    """

    name = "best"

    def __init__(self, learned: Placer) -> None:
        self.learned = learned

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        plain = narrow_problem(space) is None
        first, second = (CONSTRUCTION_SHARE, LEARNED_SHARE) if plain else ON_GROUPS
        found = [best_construction(space, rng, share_of(deadline, first))]
        sampled = run_member(self.learned, space, rng, share_of(deadline, second))
        found += [sampled] if sampled is not None else []
        best = min(found, key=lambda f: space.score(f.device, f.order))
        if time.perf_counter() < deadline:
            improved = anneal(space, best, rng, deadline)
            if space.score(improved.device, improved.order) < space.score(best.device, best.order):
                return Found(improved.device, improved.order, f"{best.note}; then annealing")
        return best
