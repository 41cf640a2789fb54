"""Nested clusters of units that exchange much with each other, at several levels.

Formulation. Two clusters that exchange e seconds of transfers and have a and b seconds of work gain
at most min(a, b) by running at the same time on two devices, and pay e. Pairs are merged by
descending e / min(a, b), as long as no cluster has more than ``SLACK`` times its even share of all
work among the target number of clusters. After each of a few passes the exchanges between clusters
are summed again. The target is halved until it is two, and the clusters at some targets are kept,
so that levels are nested. A cluster without neighbours, or with too much work, is not merged. This
is multilevel agglomeration as in METIS (Karypis and Kumar, 1998), without its matching and its
refinement.

Deterministic; ties go to the unit that is earlier in ``WalkGraph.unit_order``.
Complexity: O(E log E log U), mostly O(E log E), since edges within clusters are dropped.

Features of clusters, during the walk of the GNN's decoder. Besides the features of
``policy.decode``, a candidate device has four for each level: the share of the unit's cluster that
is on it, the share of the cluster that is placed at all, the share of the cluster's transfers with
other clusters that lead to the device, and the seconds of such transfers to all other devices over
the cluster's work. Complexity: O(NUM_LEVELS * (D + neighbours)) a decision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray, LongArray, SingleArray
from gnnplace.graph import ONE, Index, inner, kernel, zero_single_table, zero_singles
from gnnplace.policy.decode.kernels import DYNAMIC, NUM_DYNAMIC, log_above
from gnnplace.policy.decode.walk import Walk, WalkGraph
from gnnplace.simulation import mean_transfer_times

# Clusters a device that levels aim at; the last level has two for all devices.
AIMS = (16, 4, 1)
NUM_LEVELS = len(AIMS) + 1
SLACK = 1.5  # most work of a cluster, of an even share
PASSES = 2  # Passes with the same aim
DIGITS = 9  # Digits of a ratio that are compared


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


def build_clusters(graph: WalkGraph) -> Clusters:
    """Return the clusters of a problem."""
    walk = graph.forward
    num_devices = graph.problem.num_devices
    flow = flow_seconds(graph)
    num_units = len(walk.unit_work)
    unit = np.repeat(np.arange(num_units), np.diff(walk.flow_offset))
    rank = np.argsort(graph.unit_order)
    source = rank[unit]
    target = rank[walk.flow_unit]
    forward = source < target
    edges = (source[forward], target[forward], flow[forward])
    aims = [max(2, aim * num_devices) for aim in AIMS] + [2]
    ordered_work = walk.unit_work[graph.unit_order]
    of = make_nested_clusters(*edges, ordered_work, aims)[:, rank]
    # Clusters of all levels are numbered one level after the other.
    clusters_of_level = of.max(axis=1) + 1
    first = np.concatenate(([0], np.cumsum(clusters_of_level)[:-1]))
    of += first[:, None]
    count = int(of.max()) + 1
    work_of_levels = np.tile(walk.unit_work, NUM_LEVELS)
    work = sums(of.ravel(), work_of_levels, count)
    apart = of[:, unit] != of[:, walk.flow_unit]
    cut_flow = apart * flow
    outside = sums(of[:, unit].ravel(), cut_flow.ravel(), count)
    work = np.maximum(work, 1e-6 * walk.work / num_units)
    return Clusters(
        of=of.astype(np.int32),
        work=work,
        outside=outside,
        flow=flow,
    )


def sums(of: LongArray, values: FloatArray, count: int) -> FloatArray:
    """Sum of the values of each number. [count]"""
    return np.asarray(np.bincount(of, values, count), np.float64)


def flow_seconds(graph: WalkGraph) -> FloatArray:
    """Return the seconds of transfers between units over the cluster's mean link, all copies, both
    ways.
    """
    walk = graph.forward
    copies = graph.problem.microbatches
    seconds = np.zeros(len(walk.flow_unit))
    for size in (walk.flow_in, walk.flow_out):
        flows = size >= 0.0
        seconds[flows] += copies * mean_transfer_times(
            graph.problem, size[flows] / copies
        )
    return seconds


def make_nested_clusters(
    source: LongArray,
    target: LongArray,
    seconds: FloatArray,
    work: FloatArray,
    aims: list[int],
) -> LongArray:
    """Return the cluster of each unit at each level, numbered from 0 at each. [levels, U]

    Args:
        source: the unit of lesser number of each pair that exchanges something. [E]
        target: the other one. [E]
        seconds: The seconds of transfers between them. [E]
        work: seconds of each unit. [U]
        aims: wished numbers of clusters, descending.
    """
    root = np.arange(len(work), dtype=np.int64)
    work = work.copy()
    total_work = float(work.sum())
    level_of = dict[int, LongArray]()
    finer = _list_doubles(aims[0], len(work))
    coarser = _list_doubles(2, aims[0])
    steps = {*aims, *finer, *coarser}
    for aim in sorted(steps, reverse=True):
        for _ in range(PASSES):
            source, target, seconds = _between(
                root[source], root[target], seconds, len(work)
            )
            smaller_work = np.minimum(work[source], work[target])
            smaller_work = np.maximum(smaller_work, 1e-300)
            exchange = np.maximum(seconds, 1e-300)
            ratio = np.round(np.log(exchange / smaller_work), DIGITS)
            by_ratio = np.lexsort((target, source, -ratio))
            unite(source, target, by_ratio, SLACK * total_work / aim, root, work)
        level_of[aim] = np.unique(root, return_inverse=True)[1]
    levels = [level_of[aim] for aim in aims]
    return np.stack(levels).astype(np.int64)


def _list_doubles(first: int, limit: int) -> list[int]:
    """Return ``first`` and its doubles below ``limit``."""
    return [first * 2**k for k in range(64) if first * 2**k < limit]


def _between(
    source: LongArray, target: LongArray, seconds: FloatArray, count: int
) -> tuple[LongArray, LongArray, FloatArray]:
    """Return the pairs of clusters once each, the lesser number first, and what they exchange in
    sum.
    """
    apart = source != target
    low = np.minimum(source, target)[apart]
    high = np.maximum(source, target)[apart]
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
    """Unite pairs in an order where no more work than ``most`` comes together.

    Args:
        source: a cluster of each pair, by its root. [E]
        target: the other one. [E]
        order: The order of the pairs. [E]
        most: seconds of work that a cluster may have.
        root: changed: the least unit of each unit's cluster. [U]
        work: changed: seconds of each root's cluster. [U]
    """
    for k in order:
        first = source[k]
        second = target[k]
        while root[first] != first:
            first = root[first]
        while root[second] != second:
            second = root[second]
        if first != second and work[first] + work[second] <= most:
            low = min(first, second)
            high = max(first, second)
            root[high] = low
            work[low] += work[high]
    for u in range(len(root)):
        root[u] = root[root[u]]


CANDIDATE = DYNAMIC + tuple(
    f"{name}, level {level}"
    for level in range(NUM_LEVELS)
    for name in (
        "share of the cluster there",
        "share of the cluster decided",
        "share of the cluster's transfers there",
        "log transfers of the cluster to others over its work",
    )
)
NUM_CANDIDATE = len(CANDIDATE)


class HeldClusters(NamedTuple):
    """The decisions on N clusters so far.

    Attributes:
        work: seconds of each cluster on each device. [N, D]
        near: seconds of transfers between each cluster and decided units of others, by the units'
            device. [N, D]
        decided: seconds of each cluster on all devices. [N]
        far: seconds of ``near`` on all devices. [N]
    """

    work: SingleArray
    near: SingleArray
    decided: SingleArray
    far: SingleArray


@inner()
def make_empty_holdings(clusters: Clusters, num_devices: int) -> HeldClusters:
    """Return what devices hold before the first decision: nothing."""
    count = len(clusters.work)
    return HeldClusters(
        zero_single_table(count, num_devices),
        zero_single_table(count, num_devices),
        zero_singles(count),
        zero_singles(count),
    )


@inner(_nrt=False)
def hold(
    walk: Walk, clusters: Clusters, held: HeldClusters, unit: int, device: int
) -> None:
    """Take note that a unit is on a device."""
    unit = Index(unit)
    for level in range(NUM_LEVELS):
        cluster = Index(clusters.of[level, unit])
        held.work[cluster, device] += walk.unit_work[unit]
        held.decided[cluster] += walk.unit_work[unit]
        for k in range(
            Index(walk.flow_offset[unit]), Index(walk.flow_offset[unit + ONE])
        ):
            neighbour = Index(clusters.of[level, Index(walk.flow_unit[k])])
            if neighbour != cluster:
                held.near[neighbour, device] += clusters.flow[k]
                held.far[neighbour] += clusters.flow[k]


@inner(_nrt=False)
def observe_held(
    clusters: Clusters,
    held: HeldClusters,
    unit: int,
    allowed: BoolArray,
    out: SingleArray,
) -> None:
    """Write the features of every candidate device for a unit, behind ``observe``'s. ``out``: [D,
    F]
    """
    unit = Index(unit)
    for level in range(NUM_LEVELS):
        cluster = Index(clusters.of[level, unit])
        f = NUM_DYNAMIC + 4 * level
        work = clusters.work[cluster]
        outside = max(clusters.outside[cluster], 1e-30)
        for d in range(len(allowed)):
            if not allowed[d]:
                for k in range(f, f + 4):
                    out[d, k] = 0.0
                continue
            out[d, f] = held.work[cluster, d] / work
            out[d, f + 1] = held.decided[cluster] / work
            out[d, f + 2] = held.near[cluster, d] / outside
            out[d, f + 3] = log_above(
                max(0.0, held.far[cluster] - held.near[cluster, d]) / work
            )
