"""``ClusterCopies``: a cluster, and copies of it joined by a network, as ring all-reduces see it.

Device ``i`` of the fabric is device ``i % D`` of copy ``i // D`` of a cluster of D devices. Between
copies every device sends through its copy's one network channel.

A ring all-reduce (``costs.collectives.share``, ``messages``) goes at the pace of its slowest link,
and every message of it waits for a latency::

    seconds = bytes * pace + messages * latency
    pace    = share of the bytes * max over the ring's links of (sends on its channel / bandwidth)

Where the links of a ring's devices name the fabric that they are part of, and one copy of the
cluster has them all, seconds are those of ``costs.collectives`` instead: measured ones, with the
busiest channel counted as often as other rings send on it too.

Rings go through devices as listed, so that neighbours of one server or copy stay together and a
server's network channel carries one send a ring. All rings run at once: a channel's sends are
those of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnplace.costs.collectives import ALL_REDUCE, Group, collective, group_of, messages, share
from gnnplace.costs.links import Estimate, LinkTable, shipped
from gnnplace.errors import InputError
from gnnplace.problem.cluster import Cluster
from gnnplace.simulation.transfer import message_seconds

NETWORK_LATENCY = 10e-6
NETWORK_BANDWIDTH = 10e9


@dataclass(frozen=True)
class Way:
    """What a send from one device to another takes.

    Attributes:
        latency: seconds that a message waits, whatever its size.
        bandwidth: bytes per second that pass.
        channels: what it shares with other sends.
        busy: whether the sending device makes the copy itself.
    """

    latency: float
    bandwidth: float
    channels: tuple[Hashable, ...]
    busy: bool


@dataclass(frozen=True)
class Ring:
    """An all-reduce over a ring.

    Attributes:
        pace: seconds a byte of what is reduced.
        latency: seconds whatever the size.
        overlaps: whether devices can compute meanwhile.
    """

    pace: float
    latency: float
    overlaps: bool

    def seconds(self, size: float) -> float:
        """Seconds for so many bytes."""
        return size * self.pace + self.latency


@dataclass(frozen=True)
class KnownRing(Ring):
    """An all-reduce over devices of a known fabric.

    Attributes:
        group: the devices of the ring, by servers.
        table: what was measured; None for the package's.
        shared: rings that go over the busiest channel, itself included.
    """

    group: Group = field(default_factory=lambda: Group(None))
    table: LinkTable | None = None
    shared: float = 1.0

    def seconds(self, size: float) -> float:
        """Seconds for so many bytes, as the fabric takes them."""
        return self.shared * collective(ALL_REDUCE, size, self.group, self.table).seconds


@dataclass(frozen=True)
class ClusterCopies:
    """A cluster and copies of it.

    Attributes:
        cluster: the cluster, of which copies may follow.
        latency: seconds of the network between copies.
        bandwidth: bytes per second of a copy's network channel.
        table: what collectives take, where links name their fabric; None for the package's.
    """

    cluster: Cluster
    latency: float = NETWORK_LATENCY
    bandwidth: float = NETWORK_BANDWIDTH
    table: LinkTable | None = None

    def __post_init__(self) -> None:
        if self.latency < 0 or not self.bandwidth > 0:
            raise InputError("network: latency must not be negative, bandwidth must be positive")

    def way(self, source: int, target: int) -> Way:
        """The way between two devices of the fabric.

        Raises:
            InputError: the cluster has no link between them.
        """
        size, cluster = self.cluster.num_devices, self.cluster
        copy, other = source // size, target // size
        if copy != other:
            return Way(self.latency, self.bandwidth, (("network", copy),), False)
        a, b = source % size, target % size
        if not cluster.linked[a, b]:
            names = (cluster.devices[a].name, cluster.devices[b].name)
            raise InputError(f"all-reduce: no link from {names[0]!r} to {names[1]!r}")
        return Way(
            float(cluster.latency[a, b]),
            float(cluster.bandwidth[a, b]),
            tuple((copy, int(k)) for k in cluster.channels[a, b] if k >= 0),
            bool(cluster.sender_busy[a, b]),
        )

    def rings(self, members: Sequence[Sequence[int]]) -> list[Ring]:
        """Rings that run at the same time.

        Args:
            members: devices of each ring; one device needs no ring.
        """
        ways = [
            [self.way(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
            if len(ring) > 1
            else []
            for ring in members
        ]
        sends = Counter(channel for ring in ways for way in ring for channel in way.channels)
        rings = [_ring(ring, sends) for ring in ways]
        return [
            self._known(ring, own, way, sends)
            for ring, own, way in zip(rings, members, ways, strict=True)
        ]

    def _known(
        self, ring: Ring, members: Sequence[int], ways: Sequence[Way], sends: Counter[Hashable]
    ) -> Ring:
        """The ring as its fabric is known to take it, if it is."""
        size = self.cluster.num_devices
        if len(members) < 2 or len({member // size for member in members}) > 1:
            return ring
        group = group_of(self.cluster, [member % size for member in members])
        if group is None or not group.fabrics <= (self.table or shipped()).latency.keys():
            return ring
        own = Counter(channel for way in ways for channel in way.channels)
        shared = max(sends[channel] / count for channel, count in own.items())
        return KnownRing(ring.pace, ring.latency, ring.overlaps, group, self.table, shared)

    def known(self, size: float) -> Estimate | None:
        """An all-reduce of ``size`` bytes over one copy, if its fabric is known."""
        (ring,) = self.rings([range(self.cluster.num_devices)])
        if not isinstance(ring, KnownRing):
            return None
        return collective(ALL_REDUCE, size, ring.group, self.table)

    def group(self, first: int, count: int) -> Cluster:
        """The cluster of ``count`` devices from ``first`` on, which lie in one copy.

        Raises:
            InputError: they lie in two copies.
        """
        size = self.cluster.num_devices
        if first % size + count > size:
            raise InputError(f"a group of {count} devices does not fit a cluster of {size}")
        devices = self.cluster.devices[first % size : first % size + count]
        names = {device.name for device in devices}
        links = [k for k in self.cluster.links if k.source in names and k.target in names]
        return Cluster(devices, tuple(links), self.cluster.name)


def _ring(ways: Sequence[Way], sends: Counter[Hashable]) -> Ring:
    n = len(ways)
    if n == 0:
        return Ring(0.0, 0.0, True)
    slowest = max(message_seconds(sends[c], way.bandwidth) for way in ways for c in way.channels)
    latency = max(way.latency for way in ways)
    busy = any(way.busy for way in ways)
    return Ring(share(ALL_REDUCE, n) * slowest, messages(ALL_REDUCE, n) * latency, not busy)


def signature(cluster: Cluster) -> tuple[object, ...]:
    """What makes two clusters alike but for names: placing one places the other."""
    channels: dict[int, int] = {}
    pattern = tuple(
        channels.setdefault(int(c), len(channels)) if c >= 0 else -1
        for c in cluster.channels.ravel()
    )
    matrices = (
        cluster.latency, cluster.bandwidth, cluster.sender_busy,
        cluster.send_overhead, cluster.receive_overhead,
    )  # fmt: skip
    kinds = tuple((device.kind, device.memory) for device in cluster.devices)
    return kinds, pattern, tuple(np.asarray(m).tobytes() for m in matrices)
