"""Devices and links as files have them, validated; and ``Cluster``: the same as dense arrays.

What joins GPUs: measured figures of one message, by the machine that they were measured on.

A message of ``s`` bytes takes ``latency + s / bandwidth``. ``bandwidth`` is what the largest
message measured attains, ``latency`` what the smallest took beyond its bytes. Where no single
messages were measured, both are those of an all-gather of two GPUs, of which each sends one half to
the other, or the bus bandwidth and the latency of a step of an all-reduce; ``source`` says so.
Collectives of the same machines are in ``gnnplace/costs/tables/links.json``, with commits and
licences in ``LINKS.md`` beside it.

How links share what is between them is the presets' matter: behind an NVSwitch or PCIe with peer
copies each GPU has one port a direction, on dedicated NVLinks every pair its own channel.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.errors import InputError, join_faults, suggestion
from gnnplace.files import Bytes, Rate, Schema, Seconds

Name = Annotated[str, Field(min_length=1)]


def _channels(value: object) -> object:
    """Check a link's channels: one name, a tuple of several different ones, or None.

    Raises:
        ValueError: what is wrong; pydantic adds the key path.
    """
    if value is None or (isinstance(value, str) and value):
        return value
    if not isinstance(value, list | tuple):
        raise ValueError("must be a name or a list of names")
    if not value:
        raise ValueError(
            "an empty list; leave the key out for a channel of the link's own"
        )
    for name in value:
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"must be a name or a list of names, not {name!r} in the list"
            )
        if value.count(name) > 1:
            raise ValueError(f"{name!r} is repeated")
    if len(value) == 1:
        return value[0]
    return tuple(value)


def _as_in_files(value: str | tuple[str, ...] | None) -> object:
    if isinstance(value, tuple):
        return list(value)
    return value


Channel = Annotated[
    str | tuple[str, ...] | None,
    BeforeValidator(_channels),
    PlainSerializer(_as_in_files),
]


def _known(value: object) -> object:
    if isinstance(value, str):
        is_between(value)  # refuses names that it does not know
    return value


class Device(Schema):
    """One place that runs ops, one at a time. ``memory`` in bytes, of it ``reserve`` stays free."""

    name: Name
    kind: Name
    memory: Bytes
    reserve: Bytes = 0.0


class LinkCosts(Schema):
    """The costs of a transfer: ``latency`` in seconds, ``bandwidth`` in bytes per second.

    Links that name the same ``channel`` share it; one that names several holds them all at once.
    ``sender_busy``, ``send_overhead`` and ``receive_overhead`` (seconds a message) say what a
    transfer costs the devices themselves. ``fabric`` names the measured machine that it is part of
    (``gnnplace.problem.cluster.cluster``): what collectives over it take is known then.
    """

    latency: Seconds
    bandwidth: Rate
    channel: Channel = None
    sender_busy: bool = False
    send_overhead: Seconds = 0.0
    receive_overhead: Seconds = 0.0
    fabric: Annotated[str | None, BeforeValidator(_known)] = None


class Link(LinkCosts):
    """A directed way for tensors from one device to another."""

    source: Name
    target: Name

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the names of the channels that the link holds; none if it has one of its own."""
        if self.channel is None:
            return ()
        if isinstance(self.channel, str):
            return (self.channel,)
        return self.channel


def link_all_pairs(names: Sequence[str], **costs: Any) -> tuple[Link, ...]:
    """Return links of the same costs from each device to each other one."""
    return tuple(Link(source=a, target=b, **costs) for a, b in permutations(names, 2))


def cluster_faults(devices: Sequence[Device], links: Sequence[Link]) -> list[str]:
    """Return every fault of the names of devices and links.

    Names may repeat, and links may end at devices that do not exist.
    """
    names = Counter(device.name for device in devices)
    if devices:
        faults = []
    else:
        faults = ["devices: at least one device is needed"]
    earlier_names: set[str] = set()
    for i, device in enumerate(devices):
        if device.name in earlier_names:
            faults.append(f"devices[{i}].name: {device.name!r} is repeated")
        earlier_names.add(device.name)
    pairs: set[tuple[str, str]] = set()
    for i, link in enumerate(links):
        ends = (("source", link.source), ("target", link.target))
        faults += [
            f"links[{i}].{key}: no device is named {end!r}{suggestion(end, names)}"
            for key, end in ends
            if end not in names
        ]
        if link.source == link.target:
            faults.append(f"links[{i}].target: a link from {link.source!r} to itself")
        if (link.source, link.target) in pairs:
            faults.append(
                f"links[{i}]: the link {link.source!r} to {link.target!r} is repeated"
            )
        pairs.add((link.source, link.target))
    return faults


def list_device_counts(most: int) -> list[int]:
    """Return the powers of two below a number of devices, and the number itself."""
    return [*(2**k for k in range(most.bit_length()) if 2**k < most), most]


LISTED_DEVICES = 1024  # Up to as many devices, links between all pairs may be listed
# The number of devices up to which every pair is a link; more links are made by rule.
FEW_DEVICES = 64
MOST_DEVICES = 16384


class LinkRule(Protocol):
    """The interface of a rule for the link from any device to any other."""

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        ...

    def link(self, source: int, target: int) -> Link:
        """Return the link from one device to another, by their indices."""
        ...


@dataclass(frozen=True)
class RuleLinks(Sequence[Link]):
    """Links between all pairs of devices, each of which is made when it is asked for.

    Attributes:
        rule: What makes them.
    """

    rule: LinkRule

    def __len__(self) -> int:
        count = self.rule.num_devices
        return count * (count - 1)

    @overload
    def __getitem__(self, index: int) -> Link: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Link]: ...

    def __getitem__(self, index: int | slice) -> Link | Sequence[Link]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        source, target = divmod(range(len(self))[index], self.rule.num_devices - 1)
        return self.rule.link(source, target + (target >= source))

    def leaving(self, source: int) -> list[Link]:
        """Return the links that leave a device, by its index."""
        count = self.rule.num_devices
        return [
            self.rule.link(source, target)
            for target in range(count)
            if target != source
        ]


def list_links(rule: LinkRule) -> Sequence[Link]:
    """Return the links of all pairs of devices, as a list where they are few."""
    links = RuleLinks(rule)
    if rule.num_devices > FEW_DEVICES:
        return links
    return tuple(links)


NETWORK_LATENCY = 10e-6
"""Seconds of a message between copies of a cluster where nobody says them; assumed."""
NETWORK_BANDWIDTH = 10e9
"""Bytes a second of a copy's network channel where nobody says them: 100 Gbit/s as it is used."""


@dataclass(frozen=True)
class ClusterCopies:
    """The rule of the links of a cluster that stands several times, joined by a network.

    Attributes:
        cluster: The cluster, whose devices are called `gpu:0` and so on.
        count: The number of copies.
        latency: Seconds of a message between copies beside its bytes.
        bandwidth: Bytes a second of a network card.
        shared: Whether all devices of a copy share one card; else each has its own.
    """

    cluster: Cluster
    count: int
    latency: float = NETWORK_LATENCY
    bandwidth: float = NETWORK_BANDWIDTH
    shared: bool = True

    @property
    def num_devices(self) -> int:
        """Number of devices of all copies."""
        return self.count * self.cluster.num_devices

    def link(self, source: int, target: int) -> Link:
        """Return the link from one device to another, by their indices.

        Channels inside of a copy are named after the copy.
        """
        size = self.cluster.num_devices
        copy, inner_source = divmod(source, size)
        other_copy, inner_target = divmod(target, size)
        names = (f"gpu:{source}", f"gpu:{target}")
        if copy != other_copy:
            ports = (f"copy:{copy}", f"copy:{other_copy}") if self.shared else names
            return Link(
                source=names[0],
                target=names[1],
                latency=self.latency,
                bandwidth=self.bandwidth,
                channel=(f"{ports[0]} network out", f"{ports[1]} network in"),
                fabric=OWN_BETWEEN,
            )
        inner = self._links[inner_source, inner_target]
        channel: Channel = tuple(f"copy:{copy} {name}" for name in inner.channels)
        update = {"source": names[0], "target": names[1], "channel": channel or None}
        return inner.model_copy(update=update)

    @cached_property
    def _links(self) -> dict[tuple[int, int], Link]:
        """Return the links of the cluster by the indices of their ends."""
        index = self.cluster.device_index
        return {
            (index[link.source], index[link.target]): link
            for link in self.cluster.listed_links
        }

    def joined(self, name: str) -> Cluster:
        """Return all copies as one cluster.

        Raises:
            InputError: There are too few or too many of them.
        """
        if not (self.count >= 1 and self.num_devices <= MOST_DEVICES):
            raise InputError(
                f"cluster {name!r}: must be one copy at least and {MOST_DEVICES} devices at most"
            )
        devices = tuple(
            device.model_copy(update={"name": f"gpu:{index}"})
            for index, device in enumerate(self.cluster.devices * self.count)
        )
        return Cluster(devices, RuleLinks(self), name, copies=self)


@dataclass(frozen=True)
class Cluster:
    """Devices and directed links. A pair without a link cannot exchange tensors; no routing.

    Links are listed, or made by a rule (`RuleLinks`) where a list of all pairs would be too long.

    Attributes:
        devices: The devices, in topology order.
        links: The directed links between them.
        name: The name of the cluster.
        copies: The cluster that all devices are copies of; None if it stands once.

    Raises:
        InputError: no device, a repeated device, a dangling, repeated or self link.
    """

    devices: tuple[Device, ...]
    links: Sequence[Link] = ()
    name: str = "cluster"
    copies: ClusterCopies | None = None

    def __post_init__(self) -> None:
        if isinstance(self.links, RuleLinks):
            return  # every pair of devices has one
        if faults := cluster_faults(self.devices, self.links):
            raise join_faults(InputError, faults)

    def each_device(self, **changed: float) -> Cluster:
        """Return the cluster with fields of all its devices changed."""
        devices = tuple(device.model_copy(update=changed) for device in self.devices)
        return replace(self, devices=devices)

    @property
    def num_devices(self) -> int:
        """Number of devices D."""
        return len(self.devices)

    @cached_property
    def device_index(self) -> dict[str, int]:
        """Index of each device by its name."""
        return {device.name: i for i, device in enumerate(self.devices)}

    @cached_property
    def memory(self) -> FloatArray:
        """Return the bytes of each device that placements may use: memory less reserve. [D]"""
        free = [max(device.memory - device.reserve, 0.0) for device in self.devices]
        return np.array(free, dtype=np.float64)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Return the distinct kinds of devices, in order of first appearance."""
        return tuple(dict.fromkeys(device.kind for device in self.devices))

    @cached_property
    def latency(self) -> FloatArray:
        """Return the seconds from row to column; 0 on the diagonal, inf without a link. [D, D]"""
        return self._matrix([link.latency for link in self.listed_links], np.inf, 0.0)

    @cached_property
    def bandwidth(self) -> FloatArray:
        """Return the bytes a second from row to column; inf on the diagonal, 0 unlinked. [D, D]"""
        return self._matrix([link.bandwidth for link in self.listed_links], 0.0, np.inf)

    @cached_property
    def send_overhead(self) -> FloatArray:
        """Return the seconds of the sending device a message. [D, D]"""
        return self._matrix(
            [link.send_overhead for link in self.listed_links], 0.0, 0.0
        )

    @cached_property
    def receive_overhead(self) -> FloatArray:
        """Return the seconds of the receiving device a message. [D, D]"""
        return self._matrix(
            [link.receive_overhead for link in self.listed_links], 0.0, 0.0
        )

    @cached_property
    def sender_busy(self) -> BoolArray:
        """Return whether the sending device makes the copy itself. [D, D]"""
        return (
            self._matrix(
                [float(link.sender_busy) for link in self.listed_links], 0.0, 0.0
            )
            > 0
        )

    @cached_property
    def linked(self) -> BoolArray:
        """Return whether there is a link from row to column. [D, D]"""
        return self.channels[:, :, 0] >= 0

    @cached_property
    def channels(self) -> IntArray:
        """Return the channel indices of each pair, at most W, -1 after the last. [D, D, W]"""
        names: dict[str, int] = {}
        channel_ids = [
            # A link that names no channel has one of its own.
            [
                names.setdefault(name, len(names))
                for name in [f"={name}" for name in link.channels] or [f"link {i}"]
            ]
            for i, link in enumerate(self.listed_links)
        ]
        width = max(map(len, channel_ids), default=1)
        matrix = np.full(
            (self.num_devices, self.num_devices, width), -1, dtype=np.int32
        )
        matrix[self._ends] = np.array(
            [row + [-1] * (width - len(row)) for row in channel_ids], dtype=np.int32
        ).reshape(-1, width)
        return matrix

    @cached_property
    def num_channels(self) -> int:
        """Number of distinct channels."""
        return int(self.channels.max(initial=-1)) + 1

    def links_from(self, source: int) -> Sequence[Link]:
        """Return the links that leave a device, by its index."""
        if isinstance(self.links, RuleLinks):
            return self.links.leaving(source)
        name = self.devices[source].name
        return [link for link in self.links if link.source == name]

    @cached_property
    def listed_links(self) -> Sequence[Link]:
        """Return the links one by one.

        Raises:
            InputError: They are made by rule, and all pairs of devices are too many.
        """
        if isinstance(self.links, RuleLinks) and self.num_devices <= LISTED_DEVICES:
            return tuple(self.links)
        if isinstance(self.links, RuleLinks):
            raise InputError(
                f"cluster {self.name!r}: has {self.num_devices} devices, too many to list the "
                "links of all pairs; `gnnplace plan MODEL --cluster` answers for a decoder by name"
            )
        return self.links

    @cached_property
    def _ends(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the source and target device of each link."""
        index = self.device_index
        source = np.array(
            [index[link.source] for link in self.listed_links], dtype=np.intp
        )
        return source, np.array(
            [index[link.target] for link in self.links], dtype=np.intp
        )

    def part(self, devices: Sequence[int]) -> Cluster:
        """Return a cluster of some of the devices, in this order, and the links between them."""
        if tuple(devices) == tuple(range(self.num_devices)):
            return self
        names = {self.devices[d].name for d in devices}
        sources: Sequence[Link] = self.links
        if isinstance(self.links, RuleLinks):
            sources = [
                link for device in devices for link in self.links.leaving(device)
            ]
        links = tuple(
            link for link in sources if link.source in names and link.target in names
        )
        return Cluster(tuple(self.devices[d] for d in devices), links, self.name)

    def pattern(self, devices: Sequence[int]) -> bytes:
        """Return a key that is equal for devices whose links and channels differ by names alone."""
        at = np.ix_(devices, devices)
        channel = {-1: -1}
        renamed = [
            channel.setdefault(c, len(channel))
            for c in self.channels[at].ravel().tolist()
        ]
        links = (
            self.latency,
            self.bandwidth,
            self.send_overhead,
            self.receive_overhead,
        )
        matrices = (*links, self.sender_busy)
        return b"".join(
            [str(renamed).encode(), *(matrix[at].tobytes() for matrix in matrices)]
        )

    def _matrix(
        self, values: Sequence[float], absent: float, diagonal: float
    ) -> FloatArray:
        matrix = np.full((self.num_devices, self.num_devices), absent)
        np.fill_diagonal(matrix, diagonal)
        matrix[self._ends] = values
        return matrix


GIGA = 1e9


@dataclass(frozen=True)
class Fabric:
    """A kind of connection, of one machine that it was measured on.

    Attributes:
        about: what it is, in words.
        latency: seconds of a message beside its bytes.
        bandwidth: bytes per second of a message.
        source: where the figures are from.
        between: whether it joins servers, and not the GPUs of one.
        server: bytes per second that all GPUs of a server send at once; None where each has a
            network card of its own, which no other shares.
    """

    about: str
    latency: float
    bandwidth: float
    source: str
    between: bool = False
    server: float | None = None


FABRICS: Mapping[str, Fabric] = {  # ``fabrics.json`` has microseconds and GB/s
    name: Fabric(
        row["about"],
        row["latency_us"] / 1e6,
        row["bandwidth_gb_s"] * GIGA,
        row["source"],
        row.get("between", False),
        row["server_gb_s"] * GIGA if "server_gb_s" in row else None,
    )
    for name, row in json.loads(
        Path(__file__).with_name("fabrics.json").read_text(encoding="utf-8")
    ).items()
}
# What a user measured; its figures stand on the links themselves.
OWN_INSIDE = "own-inside"
OWN_BETWEEN = "own-between"


def is_between(name: str) -> bool:
    """Return whether a fabric joins servers.

    Raises:
        InputError: there is none of that name; the names are listed.
    """
    if name in (OWN_INSIDE, OWN_BETWEEN):
        return name == OWN_BETWEEN
    if name not in FABRICS:
        raise InputError(f"fabric {name!r}: unknown; known: {', '.join(FABRICS)}")
    return FABRICS[name].between
