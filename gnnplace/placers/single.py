"""``single``: everything on the one device that does it soonest.

O(D) simulations. What may not be on that device (pins, kinds) goes where it takes least time.
"""

from __future__ import annotations

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search_space import SearchSpace


class Single(Placer):
    """One device for everything: the baseline that nobody should be worse than."""

    name = "single"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        tried = []
        for d, device in enumerate(space.problem.cluster.devices):
            chosen = space.allow(np.full(space.problem.num_units, d, dtype=np.int32))
            placed = space.spread(chosen)
            score, order = space.sequence(placed)
            tried.append((score, d, Found(placed, order, f"all on {device.name}")))
        return min(tried, key=lambda entry: entry[:2])[2]
