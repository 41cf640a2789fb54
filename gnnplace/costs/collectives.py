"""Seconds of collectives: all-reduce, all-gather, reduce-scatter, all-to-all.

Bytes are counted as nccl-tests does: the buffer that is reduced; everything that is gathered or
scattered; everything that a device sends, its own part included. On n devices, with latency a of a
message and bus bandwidth b::

    all-reduce                                (1 + log2(n) / 2) a + 2 (n - 1) / n s / b
    all-gather, reduce-scatter, all-to-all    (1 + log2(n) / 4) a +   (n - 1) / n s / b

The bandwidth term is that of a ring (Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce
algorithms"). The latency term is not: NCCL sends small messages along trees, with a protocol of low
latency. One launch, and a fraction of a message's latency for each level of the tree, agrees with
2, 4 and 8 A100, H100, B200 and RTX PRO 6000; the 2 (n - 1) messages of a ring would take five times
as long.

A measured series (``links``) takes precedence over the formula. For another number of devices on
the same fabric, between two measured numbers, the logarithm of seconds is linear in the logarithm
of the number. Outside of the measured numbers, the seconds of the smallest message scale with the
term of a, and the rest with the term of b. A collective that was not measured on a fabric is
derived from one that was: an all-gather or a reduce-scatter is half an all-reduce, an all-to-all is
an all-gather.

On k servers of m devices, unless the whole was measured, a collective has stages (as NCCL's and
Horovod's hierarchical all-reduce): reduce-scatter inside a server; exchange between servers, by m
rings at the same time, each with s / m of the bytes on its own network card; all-gather inside. An
all-to-all sends (k - 1) / k of its bytes between servers, then the rest inside.

``Exchange`` prices collectives on a cluster by the number of participants, because a split of a
layer says how many devices a group has, not which. Groups are neighbours in the order of the
cluster's devices, so that as few servers as possible take part. A number that does not divide
evenly over these servers is priced as the next larger group that does.

Complexity: O(log of the sizes) a call; a call may have arrays of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs.links import (
    ERRORS,
    FORMULA,
    MEASURED,
    NEIGHBOUR,
    Estimate,
    Key,
    LinkTable,
    SizeSeries,
    load_shipped_links,
)
from gnnplace.errors import InputError
from gnnplace.problem import Cluster, is_between
from gnnplace.simulation import Number

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)
# What else says how long a collective takes: a ring's all-reduce is a reduce-scatter and then an
# all-gather, and an all-to-all sends as many bytes as either.
HALF = ((ALL_REDUCE, 0.5),)
RELATIVES: Mapping[str, tuple[tuple[str, float], ...]] = {
    ALL_REDUCE: ((ALL_GATHER, 2.0), (REDUCE_SCATTER, 2.0)),
    ALL_GATHER: ((REDUCE_SCATTER, 1.0), *HALF),
    REDUCE_SCATTER: ((ALL_GATHER, 1.0), *HALF),
    ALL_TO_ALL: ((ALL_GATHER, 1.0), *HALF),
}
RANK = {MEASURED: 0, NEIGHBOUR: 1, FORMULA: 2}
# Gradients are reduced together in buckets of so many bytes: PyTorch DDP's default.
BUCKET = 25 * 2**20


@dataclass(frozen=True)
class Group:
    """Devices that exchange: ``servers`` of ``per_server``.

    Attributes:
        inside: The fabric of a server; None where each has one device.
        between: The fabric between servers; None where there is one.
        servers: The number of servers, k.
        per_server: The number of devices of a server, m.
    """

    inside: str | None
    between: str | None = None
    servers: int = 1
    per_server: int = 1

    @property
    def count(self) -> int:
        """Return the number of devices."""
        return self.servers * self.per_server

    @property
    def fabrics(self) -> frozenset[str]:
        """Return the fabrics that a collective of the group goes over."""
        return frozenset(
            name for name in (self.inside, self.between) if name is not None
        )


def make_group(cluster: Cluster, members: Sequence[int]) -> Group | None:
    """Return the group that devices of a cluster make; None where their links name no fabric.

    Servers are what fabrics inside of servers join, and must have as many members each.

    Args:
        cluster: The cluster that the devices are of.
        members: The indices of the devices.
    """
    if len(members) < 2:
        return Group(None)
    index = cluster.device_index
    member_set = set(members)
    names = {}
    for link in cluster.listed_links:
        ends = (index[link.source], index[link.target])
        if member_set.issuperset(ends):
            names[ends] = link.fabric
    if len(names) < len(member_set) * (len(member_set) - 1) or None in names.values():
        return None
    inner = {
        pair: name for pair, name in names.items() if name and not is_between(name)
    }
    outer = {name for pair, name in names.items() if pair not in inner}
    servers = _servers(members, inner)
    sizes = {len(server) for server in servers}
    if len(set(inner.values())) > 1 or len(outer) > 1 or len(sizes) > 1:
        return None
    inside = next(iter(inner.values()), None)
    return Group(inside, next(iter(outer), None), len(servers), sizes.pop())


def _servers(
    members: Sequence[int], inner: dict[tuple[int, int], str]
) -> list[set[int]]:
    """Return the members of a group by the server that they are in."""
    servers: list[set[int]] = []
    for member in members:
        server = next((s for s in servers if (member, next(iter(s))) in inner), None)
        if server is None:
            servers.append({member})
        else:
            server.add(member)
    return servers


def estimate_collective(
    op: str, size: float, group: Group, table: LinkTable | None = None
) -> Estimate:
    """Return the seconds of a collective on an idle fabric.

    Args:
        op: The collective, one of ``COLLECTIVES``.
        size: Bytes, as the heading counts them.
        group: The devices that take part.
        table: Measured series; the package's by default.

    Raises:
        InputError: The collective or a fabric is unknown, or a size is negative.
    """
    if op not in COLLECTIVES:
        raise InputError(
            f"collective {op!r}: unknown; use one of {', '.join(COLLECTIVES)}"
        )
    if not 0 <= size < np.inf:
        raise InputError(f"{op} of {size} bytes: must be a number from 0 on")
    table = table or load_shipped_links()
    if group.count < 2:
        return Estimate(0.0, FORMULA, 0.0, "one device exchanges nothing")
    seconds, provenance = _stages(op, np.array(size), group, table)
    named = ", ".join(name for name in (group.inside, group.between) if name)
    error = ERRORS[provenance]
    return Estimate(
        float(seconds), provenance, error, f"{named}: {_sources(group, table)}"
    )


def collective_seconds(
    op: str, sizes: FloatArray, group: Group, table: LinkTable | None = None
) -> FloatArray:
    """Return the seconds of collectives of many sizes; 0 for one device. [shape of ``sizes``]"""
    if group.count < 2:
        return np.zeros_like(sizes)
    return _stages(op, sizes, group, table or load_shipped_links())[0]


def _sources(group: Group, table: LinkTable) -> str:
    names = [name for name in (group.inside, group.between) if name]
    return "; ".join(dict.fromkeys(table.source.get(name, "formula") for name in names))


def _stages(
    op: str, sizes: FloatArray, group: Group, table: LinkTable
) -> tuple[FloatArray, str]:
    """Return the seconds of a collective and their weakest provenance. [shape of ``sizes``]"""
    if group.servers == 1:
        return _level(Key(op, 1, group.per_server), sizes, _named(group.inside), table)
    between = _named(group.between)
    key = Key(op, group.servers, group.per_server)
    measured = any((k.servers, k.per_server) == key[1:] for k in table.of(between))
    if group.per_server == 1 or measured:
        return _level(key, sizes, between, table)
    total = np.zeros_like(sizes)
    worst = MEASURED
    for stage, share, inside in _plan(op, group):
        if inside:
            devices = (1, group.per_server)
        else:
            devices = (group.servers, 1)
        if inside:
            fabric = _named(group.inside)
        else:
            fabric = between
        seconds, provenance = _level(Key(stage, *devices), share * sizes, fabric, table)
        total = total + seconds
        worst = max(worst, provenance, key=RANK.__getitem__)
    return total, max(worst, NEIGHBOUR, key=RANK.__getitem__)


def _plan(op: str, group: Group) -> Iterator[tuple[str, float, bool]]:
    """Yield the stages of a collective over servers.

    Each is a collective, its share of the bytes, and whether it is inside a server.
    """
    part = 1.0 / group.per_server
    if op == ALL_REDUCE:
        yield from (
            (REDUCE_SCATTER, 1.0, True),
            (ALL_REDUCE, part, False),
            (ALL_GATHER, 1.0, True),
        )
    elif op == ALL_TO_ALL:
        yield from ((ALL_TO_ALL, 1.0 / group.servers, True), (ALL_TO_ALL, 1.0, False))
    else:
        yield from ((op, 1.0, True), (op, part, False))


def _named(fabric: str | None) -> str:
    if fabric is None:
        raise InputError("collective: a group of several devices needs a fabric")
    return fabric


def _level(
    key: Key, sizes: FloatArray, fabric: str, table: LinkTable
) -> tuple[FloatArray, str]:
    """Return the seconds on one fabric and their provenance. [shape of ``sizes``]

    Raises:
        InputError: The table does not know the fabric.
    """
    if fabric not in table.latency:
        raise InputError(
            f"fabric {fabric!r}: unknown; known: {', '.join(table.latency)}"
        )
    series = table.of(fabric)
    floor = count_hops(key.op, key.devices) * table.latency[fabric]
    if key in series:
        measured = series[key]
        is_covered = all(
            measured.covers(float(size)) for size in (np.min(sizes), np.max(sizes))
        )
        return measured.at(sizes, floor), MEASURED if is_covered else NEIGHBOUR
    for op, part in ((key.op, 1.0), *RELATIVES.get(key.op, ())):
        alike = Key(op, key.servers, key.per_server)
        if alike in series:
            return part * series[alike].at(sizes, floor), NEIGHBOUR
        # Groups that differ in the number of servers, or in that of their devices, alone.
        same = (
            k
            for k in series
            if k.per_server == alike.per_server or k.servers == alike.servers
        )
        neighbours = sorted(
            (k for k in same if k.op == alike.op), key=lambda k: k.devices
        )
        if neighbours:
            near_series = {k: series[k] for k in neighbours}
            return part * _between(alike, sizes, floor, near_series), NEIGHBOUR
    return _ring(key, sizes, fabric, table), FORMULA


def _between(
    key: Key, sizes: FloatArray, floor: float, others: Mapping[Key, SizeSeries]
) -> FloatArray:
    """Return the seconds of a group, interpolated between measured groups of other sizes.

    ``others`` are sorted, the smallest first.
    """
    keys = list(others)
    counts = [k.devices for k in keys]
    above = next((i for i, count in enumerate(counts) if count >= key.devices), None)
    if above is None or above == 0:
        near = keys[-1 if above is None else 0]
        return _scale_series(key, near, sizes, floor, others[near])
    low, high = (others[keys[i]].at(sizes, floor) for i in (above - 1, above))
    width = np.log(counts[above] / counts[above - 1])
    if width:
        weight = np.log(key.devices / counts[above - 1]) / width
    else:
        weight = 0.0
    return np.exp((1 - weight) * np.log(low) + weight * np.log(high))


def _scale_series(
    key: Key, near: Key, sizes: FloatArray, floor: float, series: SizeSeries
) -> FloatArray:
    """Return the seconds of a group, scaled from the measured series of another group.

    The time of the smallest message scales by hops, the rest by shares of bytes.
    """
    seconds = series.at(sizes, floor)
    fixed = np.minimum(seconds, min(floor, series.seconds[0]))
    by_hops = count_hops(key.op, key.devices) / count_hops(near.op, near.devices)
    by_share = share(key.op, key.devices) / share(near.op, near.devices)
    return fixed * by_hops + (seconds - fixed) * by_share


def _ring(key: Key, sizes: FloatArray, fabric: str, table: LinkTable) -> FloatArray:
    """Return the seconds by the ring formula, at the fabric's measured bus bandwidth."""
    latency = count_hops(key.op, key.devices) * table.latency[fabric]
    return compute_ring_seconds(
        key.op, key.devices, sizes, bus_bandwidth(fabric, table), latency
    )


def bus_bandwidth(fabric: str, table: LinkTable) -> float:
    """Return the bytes per second of a fabric's messages in collectives.

    Single messages stand in where no collectives are known.

    The median over the largest sizes of its collectives.
    """
    rates = [
        share(k.op, k.devices) * s.bytes[-1] / s.seconds[-1]
        for k, s in table.of(fabric).items()
        if k.op in COLLECTIVES
    ]
    if rates:
        return float(np.median(rates))
    return table.bandwidth[fabric]


def count_hops(op: str, count: int) -> float:
    """Return how many latencies of a message a collective of no bytes takes."""
    return 1.0 + (0.5 if op == ALL_REDUCE else 0.25) * float(np.log2(count))


def messages(op: str, count: Number) -> Number:
    """Return how many messages each device of a ring sends one after the other.

    Each carries an equal part of the bytes.
    """
    return (2 if op == ALL_REDUCE else 1) * (count - 1)


def share(op: str, count: Number) -> Number:
    """Return the part of the bytes that passes each link of a ring of so many devices."""
    return messages(op, count) / count


def compute_ring_seconds(
    op: str, count: int, size: Number, bandwidth: float, latency: float = 0.0
) -> Number:
    """Return the seconds of a ring by the formula alone, where nothing was measured.

    Args:
        op: One of ``COLLECTIVES``.
        count: Devices of the ring.
        size: Bytes, as the heading counts them.
        bandwidth: Bytes per second of a link.
        latency: Seconds of the collective with no bytes.
    """
    return share(op, count) * size / bandwidth + latency


def compute_gradient_seconds(
    exchange: Exchange | None, bandwidth: float, count: int, total: float
) -> float:
    """Return the seconds of all-reducing the gradients of a step over devices, as DDP does.

    Args:
        exchange: What collectives take on a cluster whose fabric is known: gradients in buckets.
        bandwidth: Bytes per second of a link; without an exchange all goes in one ring.
        count: Devices.
        total: Bytes of all gradients.
    """
    if exchange is None:
        return compute_ring_seconds(ALL_REDUCE, count, total, bandwidth)
    counts = np.array(float(count))
    sizes = np.array(float(BUCKET))
    return total / BUCKET * float(exchange.seconds(ALL_REDUCE, counts, sizes))


@dataclass(frozen=True, eq=False)
class Exchange:
    """Collectives on a cluster whose links name their fabric.

    Attributes:
        cluster: The cluster that the devices are of.
        table: Measured series of messages and collectives.

    Raises:
        InputError: The links name no fabric, or one that the table does not know.
    """

    cluster: Cluster
    table: LinkTable = field(default_factory=load_shipped_links)

    def __post_init__(self) -> None:
        if self.whole is None or not self.whole.fabrics <= self.table.latency.keys():
            raise InputError(
                f"cluster {self.cluster.name!r}: its links name no measured fabric, so that what "
                "collectives take is not known; give --bandwidth, or --links with a log of "
                "nccl-tests"
            )

    @cached_property
    def whole(self) -> Group | None:
        """Return the group of all devices."""
        return make_group(self.cluster, range(self.cluster.num_devices))

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second of a message over the slowest link."""
        return float(self.cluster.bandwidth[self.cluster.linked].min(initial=np.inf))

    def group(self, count: int) -> Group:
        """Return the group of so many neighbours."""
        assert self.whole is not None
        if count <= self.whole.per_server:
            return Group(self.whole.inside, None, 1, count)
        servers = -(-count // self.whole.per_server)
        return Group(
            self.whole.inside, self.whole.between, servers, -(-count // servers)
        )

    def bucketed(self, op: str, counts: FloatArray, sizes: FloatArray) -> FloatArray:
        """Return the seconds of collectives that share buckets with others.

        A collective smaller than a bucket takes its part of the bucket's seconds.

        Arguments are those of ``seconds``.
        """
        part = np.minimum(sizes / BUCKET, 1.0)
        return part * self.seconds(
            op, counts, np.where(sizes > 0, np.maximum(sizes, BUCKET), 0.0)
        )

    def seconds(self, op: str, counts: FloatArray, sizes: FloatArray) -> FloatArray:
        """Return the seconds of collectives; none for one device, or of no bytes.

        Args:
            op: The collective, one of ``COLLECTIVES``.
            counts: Devices of each group. [any shape]
            sizes: Bytes of each, as the heading counts them. [the same shape]
        """
        counts, sizes = np.broadcast_arrays(counts, sizes)
        seconds = np.zeros(counts.shape)
        for count in np.unique(counts):
            selected = (counts == count) & (sizes > 0)
            if count > 1 and selected.any():
                group = self.group(round(float(count)))
                seconds[selected] = collective_seconds(
                    op, sizes[selected], group, self.table
                )
        return seconds
