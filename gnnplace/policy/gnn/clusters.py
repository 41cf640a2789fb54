"""Clusters of units, coarser and coarser: what would exchange much with the rest if it were parted.

Formulation. Two clusters that exchange e seconds of transfers and have a and b seconds of work gain
at most min(a, b) by running side by side, and pay e. Pairs are united in the order of e / min(a, b)
from the greatest, as long as no cluster outgrows ``SLACK`` times an even share of all work among as
many clusters as are aimed at: after each of a few passes what clusters exchange is summed anew.
Aims are halved until two are left, and the clusters of some aims are kept, so levels are nested. A
cluster without neighbours, or with too much work, stays alone. Multilevel agglomeration as of
METIS (Karypis and Kumar, 1998), without its matching and its refinement.

Deterministic; ties go to the unit that is earlier by ``WalkGraph.unit_order``.
Complexity: O(E log E log U), mostly O(E log E) since edges within clusters are dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray, LongArray
from gnnplace.graph.jit import kernel
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.simulation.list_scheduling import mean_transfer_times

AIMS = (16, 4, 1)  # clusters a device that levels aim at, the last level at two for all devices
NUM_LEVELS = len(AIMS) + 1
SLACK = 1.5  # most work of a cluster, of an even share
PASSES = 2  # with the same aim
DIGITS = 9  # of a ratio; what is nearer than that is equal


class Clusters(NamedTuple):
    """Clusters of all levels, numbered one level after the other. U units, N clusters.

    Attributes:
        of: cluster of each unit at each level, the finest first. [NUM_LEVELS, U]
        work: seconds of work of each cluster, above zero. [N]
        outside: seconds of transfers between each cluster and the others. [N]
        flow: seconds of transfers between each unit and each neighbour, as ``Walk.flow_unit``.
    """

    of: IntArray
    work: FloatArray
    outside: FloatArray
    flow: FloatArray


def clusters_of(graph: WalkGraph) -> Clusters:
    """The clusters of a problem."""
    walk, num_devices = graph.forward, graph.problem.num_devices
    flow = flow_seconds(graph)
    unit = np.repeat(np.arange(len(walk.unit_work)), np.diff(walk.flow_offset))
    rank = np.argsort(graph.unit_order)
    source, target = rank[unit], rank[walk.flow_unit]
    once = source < target
    edges = (source[once], target[once], flow[once])
    aims = [max(2, aim * num_devices) for aim in AIMS] + [2]
    of = nested(*edges, walk.unit_work[graph.unit_order], aims)[:, rank]
    of += np.concatenate(([0], np.cumsum(of.max(axis=1) + 1)[:-1]))[:, None]
    count = int(of.max()) + 1
    work = sums(of.ravel(), np.tile(walk.unit_work, NUM_LEVELS), count)
    apart = of[:, unit] != of[:, walk.flow_unit]
    outside = sums(of[:, unit].ravel(), (apart * flow).ravel(), count)
    work = np.maximum(work, 1e-6 * walk.work / len(walk.unit_work))
    return Clusters(of.astype(np.int32), work, outside, flow)


def sums(of: LongArray, values: FloatArray, count: int) -> FloatArray:
    """Sum of the values of each number. [count]"""
    return np.asarray(np.bincount(of, values, count), np.float64)


def flow_seconds(graph: WalkGraph) -> FloatArray:
    """Seconds of transfers between units over the cluster's mean link, all copies, both ways."""
    walk, copies = graph.forward, graph.problem.microbatches
    seconds = np.zeros(len(walk.flow_unit))
    for size in (walk.flow_in, walk.flow_out):
        some = size >= 0.0
        seconds[some] += copies * mean_transfer_times(graph.problem, size[some] / copies)
    return seconds


def nested(
    source: LongArray, target: LongArray, seconds: FloatArray, work: FloatArray, aims: list[int]
) -> LongArray:
    """Cluster of each unit at each level, numbered from 0 at each. [levels, U]

    Args:
        source: the unit of lesser number of each pair that exchanges something. [E]
        target: the other one. [E]
        seconds: of transfers between them. [E]
        work: seconds of each unit. [U]
        aims: wished numbers of clusters, descending.
    """
    root, work = np.arange(len(work), dtype=np.int64), work.copy()
    whole, level_of = float(work.sum()), dict[int, LongArray]()
    steps = sorted({*aims, *_doubled(aims[0], len(work)), *_doubled(2, aims[0])}, reverse=True)
    for aim in steps:
        for _ in range(PASSES):
            source, target, seconds = _between(root[source], root[target], seconds, len(work))
            least = np.maximum(np.minimum(work[source], work[target]), 1e-300)
            ratio = np.round(np.log(np.maximum(seconds, 1e-300) / least), DIGITS)
            by_ratio = np.lexsort((target, source, -ratio))
            unite(source, target, by_ratio, SLACK * whole / aim, root, work)
        level_of[aim] = np.unique(root, return_inverse=True)[1]
    return np.stack([level_of[aim] for aim in aims]).astype(np.int64)


def _doubled(first: int, limit: int) -> list[int]:
    """``first`` and its doubles below ``limit``."""
    return [first * 2**k for k in range(64) if first * 2**k < limit]


def _between(
    source: LongArray, target: LongArray, seconds: FloatArray, count: int
) -> tuple[LongArray, LongArray, FloatArray]:
    """Pairs of clusters once each, the lesser number first, and what they exchange in sum."""
    apart = source != target
    low, high = np.minimum(source, target)[apart], np.maximum(source, target)[apart]
    pair, place = np.unique(low * count + high, return_inverse=True)
    return pair // count, pair % count, sums(place, seconds[apart], len(pair))


@kernel
def unite(
    source: LongArray,
    target: LongArray,
    order: LongArray,
    most: float,
    root: LongArray,
    work: FloatArray,
) -> None:
    """Unites pairs in an order where no more work than ``most`` comes together.

    Args:
        source: a cluster of each pair, by its root. [E]
        target: the other one. [E]
        order: of the pairs. [E]
        most: seconds of work that a cluster may have.
        root: changed: the least unit of each unit's cluster. [U]
        work: changed: seconds of each root's cluster. [U]
    """
    for k in order:
        one, other = source[k], target[k]
        while root[one] != one:
            one = root[one]
        while root[other] != other:
            other = root[other]
        if one != other and work[one] + work[other] <= most:
            low, high = min(one, other), max(one, other)
            root[high] = low
            work[low] += work[high]
    for u in range(len(root)):
        root[u] = root[root[u]]
