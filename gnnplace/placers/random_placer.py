"""``random``: a uniformly random allowed device for every unit; the best within the budget.

With budget 0 one draw. O(n) a draw.
"""

from __future__ import annotations

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.clock import now
from gnnplace.placers.search.space import SearchSpace


class Random(Placer):
    """Random search: the control that every search must beat at equal time."""

    name = "random"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        best, found, draws = np.inf, None, 0
        while found is None or now() < deadline:
            ticket = rng.random(space.work.shape)
            chosen = np.where(space.problem.unit_allowed, ticket, -1.0).argmax(axis=1)
            device = space.spread(chosen.astype(np.int32))
            score, order = space.sequence(device)
            draws += 1
            if found is None or score < best:
                best, found = score, Found(device, order)
        return Found(found.device, found.order, f"{draws} draws")
