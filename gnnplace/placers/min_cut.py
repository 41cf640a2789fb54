"""``min-cut``: balanced parts with few bytes between them, by METIS (Karypis and Kumar, 1998).

Formulation: a vertex is a unit, weighted by its work; an edge is weighted by the bytes that two
units exchange. METIS cuts this graph into k parts for each k from 2 to D, with shares by device
speed, and the k with the shortest simulated step is kept. The method balances work but ignores
order, so that parts which depend on each other do not run at the same time.
Complexity: O(D (U + edges)).
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.files import silent
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.chunks import (
    device_counts,
    device_ranking,
    limit_constructed_chunks,
)
from gnnplace.placers.search.space import SearchSpace, is_expired
from gnnplace.problem import Problem

# METIS takes whole numbers; work and bytes are scaled to this maximum.
WEIGHT_SCALE = 10_000


class MinCut(Placer):
    """Graph partitioning."""

    name = "min-cut"

    def supports(self, problem: Problem) -> str | None:
        """Refuse problems of one device or one unit: there is nothing to cut."""
        if problem.num_devices < 2 or problem.num_units < 2:
            return "nothing to cut: it needs at least two devices and two units"
        return None

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        ranking = device_ranking(space)
        seed = int(rng.integers(2**31))
        tried: list[tuple[float, int, Found]] = []
        counts = device_counts(min(len(ranking), space.problem.num_units))[1:] or [1]
        for k in counts[::-1][: limit_constructed_chunks(space)]:
            if tried and is_expired(deadline):
                break
            devices = np.sort(ranking[:k])
            device = space.spread(
                space.allow(devices[cut_into_parts(space, devices, seed)])
            )
            score, order = space.sequence(device)
            tried.append((score, k, Found(device, order, f"{k} parts")))
        return min(tried, key=lambda entry: entry[:2])[2]


def cut_into_parts(space: SearchSpace, devices: IntArray, seed: int) -> IntArray:
    """Return the part of each unit, an index into ``devices``. [U]"""
    import pymetis

    if len(devices) == 1:
        return np.zeros(space.problem.num_units, dtype=np.int32)
    offset, neighbour, into, out = space.unit_flows
    both = np.maximum(into, 0.0) + np.maximum(out, 0.0)
    if len(both):
        weight = _whole(both)
    else:
        weight = np.zeros(0, dtype=np.int32)
    speed = space.speed[devices]
    with silent(1):  # METIS writes its remarks on the standard output of the process
        _, part = pymetis.part_graph(
            len(devices),
            xadj=offset.tolist(),
            adjncy=neighbour.tolist(),
            vweights=_whole(space.mean_work).tolist(),
            eweights=weight.tolist(),
            tpwgts=(speed / speed.sum()).tolist(),
            options=pymetis.Options(seed=seed),
        )
    return np.array(part, dtype=np.int32)


def _whole(values: FloatArray) -> IntArray:
    return np.maximum(1, values / max(values.max(), 1e-300) * WEIGHT_SCALE).astype(
        np.int32
    )
