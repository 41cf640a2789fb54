"""What devices hold of each cluster while the GNN walks, and the features that say so.

Beside the features of ``policy.decode`` a candidate device has four of each level: the share of the
unit's cluster that it holds, the share that is decided at all, the share of the cluster's transfers
with others that lead to the device, and what such transfers to all other devices would take over
the cluster's work. Complexity: O(NUM_LEVELS * (D + neighbours)) a decision.
"""

from __future__ import annotations

from typing import NamedTuple

from gnnplace.arrays import BoolArray, SingleArray
from gnnplace.graph.jit import inner
from gnnplace.graph.kernel_arrays import ONE, Index, zero_single_table, zero_singles
from gnnplace.policy.decode.kernels import DYNAMIC, NUM_DYNAMIC, log_above
from gnnplace.policy.decode.walk import Walk
from gnnplace.policy.gnn.clusters import NUM_LEVELS, Clusters

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
    """What is decided of N clusters.

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
def nothing_held(clusters: Clusters, num_devices: int) -> HeldClusters:
    """Before the first decision."""
    count = len(clusters.work)
    return HeldClusters(
        zero_single_table(count, num_devices),
        zero_single_table(count, num_devices),
        zero_singles(count),
        zero_singles(count),
    )


@inner(_nrt=False)
def hold(walk: Walk, clusters: Clusters, held: HeldClusters, unit: int, device: int) -> None:
    """Takes note that a unit is on a device."""
    unit = Index(unit)
    for level in range(NUM_LEVELS):
        mine = Index(clusters.of[level, unit])
        held.work[mine, device] += walk.unit_work[unit]
        held.decided[mine] += walk.unit_work[unit]
        for k in range(Index(walk.flow_offset[unit]), Index(walk.flow_offset[unit + ONE])):
            other = Index(clusters.of[level, Index(walk.flow_unit[k])])
            if other != mine:
                held.near[other, device] += clusters.flow[k]
                held.far[other] += clusters.flow[k]


@inner(_nrt=False)
def observe_held(
    clusters: Clusters, held: HeldClusters, unit: int, allowed: BoolArray, out: SingleArray
) -> None:
    """Features of every candidate device for a unit, behind ``observe``'s. ``out``: [D, F]"""
    unit = Index(unit)
    for level in range(NUM_LEVELS):
        mine, f = Index(clusters.of[level, unit]), NUM_DYNAMIC + 4 * level
        work, outside = clusters.work[mine], max(clusters.outside[mine], 1e-30)
        for d in range(len(allowed)):
            if not allowed[d]:
                for k in range(f, f + 4):
                    out[d, k] = 0.0
                continue
            out[d, f] = held.work[mine, d] / work
            out[d, f + 1] = held.decided[mine] / work
            out[d, f + 2] = held.near[mine, d] / outside
            out[d, f + 3] = log_above(max(0.0, held.far[mine] - held.near[mine, d]) / work)
