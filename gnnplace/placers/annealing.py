"""``annealing``: ``gnnplace.placers.search.annealing`` from the best of all constructions.

Complexity: O(moves) simulations.
"""

from __future__ import annotations

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.constructions import annealed_construction
from gnnplace.placers.search.space import SearchSpace


class Annealing(Placer):
    """Simulated annealing with a time budget: the rival to fear."""

    name = "annealing"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        return annealed_construction(space, rng, deadline)
