"""``ClusterCopies``: a cluster and copies of it joined by a network, and all-reduces over them.

Group ``g`` of ``n`` devices lies on devices ``g n`` and on of the copies in a row. Device ``d`` of
all groups adds up its gradients; these n all-reduces go at once. Within one copy each takes what a
plan's takes (``plans.mesh``). Over k copies it goes in stages, as over servers
(``costs.collectives``): scattered inside of a copy, reduced between copies, each member a part,
gathered inside. A copy has one network channel, which all members of all all-reduces share::

    between = 2 (k - 1) / k * bytes * n / bandwidth + (1 + log2(k) / 2) * latency
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gnnplace.costs import (
    ALL_GATHER,
    ALL_REDUCE,
    BUCKET,
    REDUCE_SCATTER,
    LinkTable,
    collective,
    hops,
    ring_seconds,
)
from gnnplace.errors import InputError
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem import Cluster

NETWORK_LATENCY = 10e-6
NETWORK_BANDWIDTH = 10e9


@dataclass(frozen=True)
class ClusterCopies:
    """A cluster and copies of it that a network joins.

    Attributes:
        cluster: The cluster, of which copies may follow.
        latency: Seconds of the network between copies.
        bandwidth: Bytes per second of a copy's network channel.
        table: Measured times of collectives, for links that name their fabric; None for the
            package's.
    """

    cluster: Cluster
    latency: float = NETWORK_LATENCY
    bandwidth: float = NETWORK_BANDWIDTH
    table: LinkTable | None = None

    def __post_init__(self) -> None:
        if self.latency < 0 or not self.bandwidth > 0:
            raise InputError(
                "network: latency must not be negative, bandwidth must be positive"
            )

    @cached_property
    def mesh(self) -> MeshFabric:
        """Return the prices of exchanges between devices of one copy."""
        return MeshFabric(self.cluster, self.table)

    @property
    def overlaps(self) -> bool:
        """Return whether devices can compute while they reduce.

        They cannot where workers make the copies themselves.
        """
        return not self.cluster.sender_busy.any()

    def all_reduce(self, device: int, size: float, groups: int, devices: int) -> float:
        """Return the seconds of an all-reduce over one device of every group.

        The other devices of the groups reduce at the same time. Over several copies of the cluster
        it is a reduce-scatter and an all-gather inside of each copy, and a ring between copies.

        Args:
            device: The index of the device in its group.
            size: Bytes of its gradients.
            groups: The number of groups.
            devices: The number of devices of a group.

        Raises:
            InputError: If two of the devices have no link.
        """
        count = self.cluster.num_devices
        copies = -(-groups * devices // count)
        inside = range(device, min(groups * devices, count), devices)
        if copies == 1:
            return self.mesh.collective(ALL_REDUCE, size, inside, devices)
        stages = (REDUCE_SCATTER, ALL_GATHER)
        within = sum(self.mesh.collective(op, size, inside, devices) for op in stages)
        waits = hops(ALL_REDUCE, copies) * self.latency
        return within + ring_seconds(
            ALL_REDUCE, copies, size, self.bandwidth / devices, waits
        )

    def origin(self, most: int) -> str:
        """Return where the seconds come from if up to `most` devices are used."""
        group = self.mesh.group(range(self.cluster.num_devices))
        origin = "predicted from the cluster's links"
        if group is not None:
            measured = collective(ALL_REDUCE, BUCKET, group, self.table)
            origin = (
                f"{measured.provenance} (expected error {measured.error:.0%} over all devices of "
                f"the cluster): {measured.source}"
            )
        copied = most > self.cluster.num_devices
        if copied:
            return f"{origin}, between copies of it from --network-* (assumed)"
        return origin
