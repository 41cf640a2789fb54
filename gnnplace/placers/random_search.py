"""``random-search``: uniformly random devices for groups of units, the best of them.

The control of ``optuna``: the same groups, the same evaluation, the same first choice, and with
budget 0 as many evaluations (``group_search``). What a model of good choices adds is the difference
between both. Complexity: O(evaluations) list schedules and simulations.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.group_search import GroupSearch
from gnnplace.placers.search.space import SearchSpace


class RandomSearch(Placer):
    """The best of random choices."""

    name = "random-search"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        groups = GroupSearch(space)

        def propose() -> IntArray:
            ticket = np.where(groups.allowed, rng.random(groups.allowed.shape), -1.0)
            return ticket.argmax(axis=1).astype(np.int32)

        return groups.run(propose, deadline)
