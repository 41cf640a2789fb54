"""``m-topo``: fill one device after the other in topological order (Baechi, Jeon et al., 2020).

Formulation: a device takes units in topological order until it holds an even share of all bytes
plus the bytes of the largest unit; then the next device is filled. The bytes of a unit are its
state and its outputs. Deviations: units instead of ops, in the order of their coordinates; shares
are proportional to the devices' memory. Complexity: O(U log U).
"""

from __future__ import annotations

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.repair import unit_bytes
from gnnplace.placers.search.space import SearchSpace


class MTopo(Placer):
    """Memory-constrained topological filling."""

    name = "m-topo"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        size = unit_bytes(space)
        memory = np.minimum(space.problem.cluster.memory, max(1.0, float(size.sum())))
        caps = size.sum() * memory / max(memory.sum(), 1e-300) + size.max()
        unit_device = np.empty(space.problem.num_units, dtype=np.int32)
        d = 0
        used_bytes = 0.0
        for unit in space.unit_order:
            if used_bytes + size[unit] > caps[d] and d < space.problem.num_devices - 1:
                d = d + 1
                used_bytes = 0.0
            unit_device[unit] = d
            used_bytes += size[unit]
        device = space.spread(space.allow(unit_device))
        return Found(device, space.sequence(device)[1])
