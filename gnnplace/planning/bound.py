"""A step time that no plan of a space is below, whatever its order of actions.

`partition.least_step` over the meshes of the space, each with the least of every number over the
kinds of devices in the cluster: memory, messages and the exchange of gradients are left out, so
that the bound holds for every plan, as far as predicted times are right.
"""

from __future__ import annotations

import numpy as np

from gnnplace.planning import partition
from gnnplace.planning.chain import Floats
from gnnplace.planning.mesh import Mesh
from gnnplace.planning.space import Space
from gnnplace.planning.stage import Sums

PRECISION = 1e-3


def least_of(space: Space, high: float) -> float:
    """Seconds that no plan of the space is below.

    Args:
        space: meshes for one size of micro-batches.
        high: a bound above this is as good as this.
    """
    count = space.pricer.fabric.cluster.num_devices
    found = {(r, t): known for r, t, _ in space.shapes if (known := _sums(space, r, t))}
    if not found:
        return float(np.inf)

    def least(*names: str) -> Floats:
        return np.array(
            [np.min([sum(getattr(x, n) for n in names) for x in sums], axis=0)
             for sums in found.values()]
        )  # fmt: skip

    seconds, before = least("forward", "backward", "weights"), least("forward", "backward")
    update = least("update") / np.array([r for r, _ in found])[:, None]
    size = np.array([r * t for r, t in found], dtype=np.int64)
    low = space.microbatches * float((seconds[:, -1] * size).min()) / count
    if not np.isfinite(high) or low >= high:
        return low
    return partition.least_step(
        seconds, before, update, size, count, space.microbatches, low, high, PRECISION
    )


def _sums(space: Space, replicas: int, shards: int) -> list[Sums]:
    """Of every kind of device; empty where the model cannot be cut so."""
    pricer = space.pricer
    if replicas * shards > pricer.fabric.cluster.num_devices:
        return []
    mesh = Mesh(0, replicas, shards)
    sums = [pricer.sums_on((kind,), mesh) for kind in pricer.fabric.cluster.kinds]
    known = [x for x in sums if x is not None]
    return known if len(known) == len(sums) else []
