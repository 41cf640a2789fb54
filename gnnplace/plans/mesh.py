"""Devices of stages: slices of the cluster in its order, as replicas times shards.

Shards are neighbours, replicas next, stages outermost, so that devices which communicate most are
closest. Shards may have two axes; along the inner one they are neighbours. A stage's mesh is a
slice of the cluster's devices as they are listed (topology order).

The seconds of a group's exchanges come from `costs.collectives` if the links name a measured
fabric, otherwise from that module's ring formula over the slowest link of the group. The rings of
all shards run at the same time, and share the network of a server if its devices share it.

Over k copies of a cluster (``64xnvlink-v100-4``) a collective goes in stages, as over servers
(``costs.collectives``): scattered inside a copy, exchanged between copies, with one part for each
member, and gathered inside. A network card that all devices of a copy share carries every member of
all groups that exchange at the same time. With n such groups an all-reduce of ``bytes`` takes
between copies::

    2 (k - 1) / k * bytes * n / bandwidth + (1 + log2(k) / 2) * latency
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from gnnplace.costs import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Group,
    LinkTable,
    compute_ring_seconds,
    count_hops,
    estimate_collective,
    load_shipped_links,
    price_message,
    share,
)
from gnnplace.errors import InputError
from gnnplace.problem import FABRICS, Cluster, Link, is_between
from gnnplace.simulation import message_seconds

# Sizes of collectives for which rates are looked up, from the largest down.
OCTAVES, EACH = (14, 4)


@dataclass(frozen=True)
class Mesh:
    """A slice of the cluster: `replicas` x `shards` devices from `first` on.

    Attributes:
        first: Index of the first device.
        replicas: The number of replicas.
        shards: The number of shards of a replica, along all axes.
        outer: Shards along the outer axis; 1 if shards have one axis.
    """

    first: int
    replicas: int
    shards: int
    outer: int = 1

    @classmethod
    def over(cls, first: int, replicas: int, axes: tuple[int, ...]) -> Mesh:
        """Return the mesh of `replicas` from device `first` on, with shards along these axes."""
        return cls(first, replicas, prod(axes), axes[0] if len(axes) > 1 else 1)

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the number of shards along each axis, the outer axis first."""
        if self.outer == 1:
            return (self.shards,)
        return (self.outer, self.shards // self.outer)

    @property
    def count(self) -> int:
        """Return the number of devices."""
        return self.replicas * self.shards

    @property
    def devices(self) -> range:
        """Return the indices of the devices."""
        return range(self.first, self.first + self.count)

    def list_shard_devices(self, replica: int = 0) -> range:
        """Return the indices of the devices that one replica's layers are split over."""
        start = self.first + replica * self.shards
        return range(start, start + self.shards)

    def summing(self, axes: Sequence[bool]) -> tuple[Sequence[int], int]:
        """Return the devices that add up over replicas and some axes of shards.

        Args:
            axes: Whether each axis of the shards is summed over.

        Returns:
            The devices of the first such group, and the number of groups.
        """
        inner = self.axes[-1]
        places = [range(0, self.shards, inner), range(inner)][-len(axes) :]
        over = [
            coordinate if summed else range(1)
            for coordinate, summed in zip(places, axes, strict=True)
        ]
        within = [sum(place) for place in product(*over)]
        starts = range(self.first, self.first + self.count, self.shards)
        return [start + w for start in starts for w in within], self.shards // len(
            within
        )

    def nested(self, cluster: Cluster) -> list[list[list[str]]]:
        """Return names of devices: replicas of rows of inner shards.

        Shards along the outer axis alone are one row.
        """
        if self.axes[-1] > 1:
            inner = self.axes[-1]
        else:
            inner = self.shards
        replicas: list[list[list[str]]] = []
        for replica in range(self.replicas):
            rows: list[list[str]] = []
            shards = self.list_shard_devices(replica)
            for first in range(0, self.shards, inner):
                row = [
                    cluster.devices[index].name
                    for index in shards[first : first + inner]
                ]
                rows.append(row)
            replicas.append(rows)
        return replicas


@dataclass(eq=False)
class MeshFabric:
    """The prices of exchanges between the devices of a cluster.

    Attributes:
        cluster: The devices and their links.
        table: Measured series of collectives; None for the package's.
    """

    cluster: Cluster
    table: LinkTable | None = None
    _rates: dict[tuple[str, float, Hashable, int], float] = field(default_factory=dict)
    _seconds: dict[tuple[str, float, Group, int], float] = field(default_factory=dict)
    _groups: dict[tuple[int, ...], Group | None] = field(default_factory=dict)

    # Made when they are asked for first: a framework's own network needs none of them.

    @cached_property
    def server(self) -> list[int]:
        """Return the server of each device. [D]

        Devices that a fabric inside of servers joins are on one server.
        """
        server = list(range(self.cluster.num_devices))
        for (a, b), link in self._links.items():
            if link.fabric is not None and not is_between(link.fabric) and a < b:
                server[b] = min(server[a], server[b])
        return server

    @cached_property
    def _links(self) -> dict[tuple[int, int], Link]:
        index = self.cluster.device_index
        links: dict[tuple[int, int], Link] = {}
        for link in self.cluster.listed_links:
            links[index[link.source], index[link.target]] = link
        return links

    def kinds(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the kinds of a mesh's devices, each once."""
        if len(self.cluster.kinds) == 1:
            return self.cluster.kinds
        return tuple(dict.fromkeys(self.cluster.devices[d].kind for d in mesh.devices))

    def memory(self, mesh: Mesh) -> float:
        """Return the bytes of the smallest device of a mesh."""
        return float(self.cluster.memory[list(mesh.devices)].min())

    def collective(
        self, op: str, size: float, members: Sequence[int], alike: int = 1
    ) -> float:
        """Return the seconds of a collective.

        Args:
            op: Name of the collective, one of `costs.collectives.COLLECTIVES`.
            size: Bytes, as that module counts them.
            members: Indices of the devices that take part.
            alike: Groups of the same servers that exchange as much at the same time.

        Raises:
            InputError: If two of the devices have no link.
        """
        if len(members) < 2 or size <= 0:
            return 0.0
        if self.cluster.copies is not None:
            return self._over_copies(op, size, members, alike)
        group = self.group(members)
        if group is not None:
            key = (op, size, group, alike)
            if key not in self._seconds:
                seconds = estimate_collective(op, size, group, self.table).seconds
                if self.cluster.num_channels == 1:  # all groups send through it
                    seconds *= alike
                together = alike * share(op, group.servers) * size
                least_seconds = message_seconds(together, _together(group.between))
                self._seconds[key] = max(seconds, least_seconds)
            return self._seconds[key]
        latency, bandwidth = self._slowest(members, alike)
        count = len(members)
        return compute_ring_seconds(
            op, count, size, bandwidth, count_hops(op, count) * latency
        )

    @cached_property
    def inside(self) -> MeshFabric:
        """Return the prices of exchanges inside of one of the copies that the cluster is."""
        copies = self.cluster.copies
        assert copies is not None
        return MeshFabric(copies.cluster, self.table)

    def _over_copies(
        self, op: str, size: float, members: Sequence[int], alike: int
    ) -> float:
        """Return the seconds of a collective over one or several copies of a cluster.

        Arguments are those of `collective`. A copy counts with as many members as the fullest.
        """
        copies = self.cluster.copies
        assert copies is not None
        by_copy: dict[int, list[int]] = {}
        for member in members:
            copy, device = divmod(member, copies.cluster.num_devices)
            by_copy.setdefault(copy, []).append(device)
        fullest = max(by_copy.values(), key=len)
        count = len(by_copy)
        if count == 1:
            return self.inside.collective(op, size, fullest, alike)
        # A ring between copies has a part of the bytes for each member, all of them one card.
        rings = len(fullest) * alike
        part = size if op == ALL_TO_ALL else size / len(fullest)
        stages = {ALL_REDUCE: (REDUCE_SCATTER, ALL_GATHER)}.get(op, (op,))
        within = size / count if op == ALL_TO_ALL else size
        seconds = sum(
            self.inside.collective(stage, within, fullest, alike) for stage in stages
        )
        bandwidth = copies.bandwidth / (rings if copies.shared else 1)
        waits = count_hops(op, count) * copies.latency
        return seconds + compute_ring_seconds(op, count, part, bandwidth, waits)

    def rate(
        self, op: str, most: float, members: Sequence[int], alike: int = 1
    ) -> float:
        """Return the least seconds a byte that a collective of up to `most` bytes takes.

        The other arguments are those of `collective`.
        """
        key = (op, most, self.group(members) or tuple(members), alike)
        if key not in self._rates:
            sizes = most * 2.0 ** -(np.arange(OCTAVES * EACH) / EACH)
            self._rates[key] = min(
                self.collective(op, float(size), members, alike) / float(size)
                for size in sizes
            )
        return self._rates[key]

    def group(self, members: Sequence[int]) -> Group | None:
        """Return how devices lie on servers and fabrics, or None if their fabric is unknown."""
        key = tuple(members)
        if key not in self._groups:
            self._groups[key] = self._group(key) if len(key) > 1 else None
        return self._groups[key]

    def _group(self, members: Sequence[int]) -> Group | None:
        """Return the group of some devices, or None if a fabric is unknown.

        All servers count with as many members as the fullest.
        """
        counts = Counter(map(self.server.__getitem__, members))
        inside = None
        between = None
        for member in members[1:]:
            link = self._links.get((members[0], member))
            if link is None or link.fabric is None:
                return None
            if is_between(link.fabric):
                between = link.fabric
            else:
                inside = link.fabric
        if inside is None and max(counts.values()) > 1:
            inside = next(iter(self._inner(members)), None)
        group = Group(inside, between, len(counts), max(counts.values()))
        if group.fabrics <= (self.table or load_shipped_links()).latency.keys():
            return group
        return None

    def _inner(self, members: Sequence[int]) -> list[str]:
        """Return the fabrics inside of servers between any two of the devices."""
        links = (self._links.get((a, b)) for a in members for b in members if a != b)
        return [x.fabric for x in links if x and x.fabric and not is_between(x.fabric)]

    def _slowest(self, members: Sequence[int], alike: int) -> tuple[float, float]:
        """Return latency and bandwidth of the slowest link of a ring, where links share channels.

        Where a ring crosses from servers to servers on links of their own, slower than half of the
        fastest, there are as many rings at once as a server has members, a network card each.
        """
        neighbours = [*members[1:], members[0]]
        ring = list(zip(members, neighbours, strict=True))
        latency = max(float(self.cluster.latency[a, b]) for a, b in ring)
        rates = self._shared(ring, alike)
        fastest = max(float(self.cluster.bandwidth[p]) for p in ring)
        across = [
            k
            for k, pair in enumerate(ring)
            if self.cluster.bandwidth[pair] < fastest / 2
        ]
        if not any(
            self._named.intersection(self.cluster.channels[ring[k]].tolist())
            for k in across
        ):
            for k in across:
                rates[k] *= max(1, len(members) // len(across))
        bandwidth = min(rates)
        if not bandwidth > 0 or not np.isfinite(latency):
            names = ", ".join(self.cluster.devices[d].name for d in members)
            raise InputError(
                f"cluster {self.cluster.name!r}: {names} are not all linked in a ring"
            )
        return latency, bandwidth

    def _shared(self, pairs: Sequence[tuple[int, int]], alike: int = 1) -> list[float]:
        """Return the bytes per second of messages between pairs that go at the same time.

        On a channel that several links share, `alike` such groups send at once.
        """
        used = [
            [c for c in self.cluster.channels[pair].tolist() if c >= 0]
            for pair in pairs
        ]
        load = Counter(c for channels in used for c in channels)
        named = self._named
        return [
            float(self.cluster.bandwidth[pair])
            / max((load[c] * (alike if c in named else 1) for c in channels), default=1)
            for pair, channels in zip(pairs, used, strict=True)
        ]

    @cached_property
    def _named(self) -> frozenset[int]:
        """Return the channels that several links share."""
        count = np.bincount(self.cluster.channels[self.cluster.channels >= 0])
        return frozenset(np.flatnonzero(count > 1).tolist())

    def sends(self, size: float, pairs: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of the slowest of several messages of one size that go at once.

        Raises:
            InputError: If two devices have no link.
        """
        link = self._links.get(pairs[0])
        alone = self.send(size, *pairs[0])
        if link is None or size <= 0:
            return alone
        if link.fabric not in FABRICS:  # what a user measured stands on the links
            return message_seconds(size, min(self._shared(pairs)), link.latency)
        counts = Counter(self.server[a] for a, _ in pairs)
        return max(
            alone, message_seconds(max(counts.values()) * size, _together(link.fabric))
        )

    def send(self, size: float, source: int, target: int) -> float:
        """Return the seconds of a message between two devices on an idle link.

        Raises:
            InputError: If the two have no link.
        """
        if size <= 0 or source == target:
            return 0.0
        link = self._links.get((source, target))
        if link is None:
            a, b = (self.cluster.devices[d].name for d in (source, target))
            raise InputError(
                f"cluster {self.cluster.name!r}: no link from {a!r} to {b!r}"
            )
        if link.fabric is not None and link.fabric in FABRICS:
            return price_message(link.fabric, size).seconds
        return message_seconds(size, link.bandwidth, link.latency)


def _together(fabric: str | None) -> float:
    """Return the bytes per second that all devices of a server can send at once.

    It is inf if they do not share a network card.
    """
    if fabric is not None:
        measured = FABRICS.get(fabric)
    else:
        measured = None
    if measured is not None and measured.server is not None:
        return measured.server
    return float("inf")
