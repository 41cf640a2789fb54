"""``round-robin``: units in topological order, dealt to the devices in turn. O(n)."""

from __future__ import annotations

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.space import SearchSpace


class RoundRobin(Placer):
    """Deals units out like cards."""

    name = "round-robin"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        chosen = np.empty(space.problem.num_units, dtype=np.int32)
        chosen[space.unit_order] = np.arange(len(chosen)) % space.problem.num_devices
        device = space.spread(space.allow(chosen))
        return Found(device, space.sequence(device)[1])
