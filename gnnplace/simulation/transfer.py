"""The costs of a message and the rules by which messages queue, for all kernels.

Formulation (rule 2 of the step-time semantics). A message of ``s`` bytes that is queued at ``q``

* begins at ``b``, the latest of ``q`` and the instants at which all channels of its link are free,
  and on a ``sender_busy`` link, where the device makes the copy itself, the sender too;
* ends its service at ``e = b + s / bandwidth``, which frees its channels and that sender;
* arrives at ``e + latency``;
* takes ``send_overhead`` of the sender before its next op, and ``receive_overhead`` of the receiver
  before the op that consumes it.

There are two kinds of callers. A simulation, which follows a step in time, queues all messages of
an op when the op finishes (``send``). A constructive scheduler, which books op after op, learns of
a message only when its *consumer* is booked, and may already have booked other ops on the sender
(``fetch``). Then the copy is made right after the producer, as the machine would do it, and the
sender's next op starts that much later; ops that are already booked do not move. The two agree if
the producer is the last op of its device.

In a reversed step (``reverse_links``) links change their ends and overheads their sides. A copy
made by the sender becomes a copy made by the receiver after the message has arrived.

Complexity: O(W) a message for links of W channels. Kernels call these functions in their innermost
loops, where LLVM inlines them. They allocate nothing, and so ``_nrt=False`` leaves out numba's
reference counts, which made a simulation three times as slow. Devices are ``Index``, unsigned, for
the same reason. Numba does not recompile a caller in another file when this file changes: clear the
cached kernels then.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import Index, inner
from gnnplace.problem import Cluster, Link

Number = TypeVar("Number", float, FloatArray)

# What ``Links.costs`` holds of a pair of devices, one cache line.
LATENCY, BANDWIDTH, PER_BYTE, DELAY, PACE, BUSY, SENDS, RECEIVES = range(8)


class Links(NamedTuple):
    """Links of D devices, from row to column; C channels, at most W of them a link.

    One array holds all costs: kernels pass the links to each other again and again, and every array
    makes that longer to compile. ``costs`` holds of every pair

    * ``LATENCY``: seconds from end of service to arrival, inf without a link;
    * ``BANDWIDTH``: bytes per second of the service;
    * ``PER_BYTE``: seconds a byte of the service, 0 without a link;
    * ``DELAY``: seconds a message takes beside those of its bytes;
    * ``PACE``: seconds a byte takes in all;
    * ``BUSY``: 1 if the sender makes the copy itself, else 0;
    * ``SENDS``: overhead of the sender, seconds a message;
    * ``RECEIVES``: overhead of the receiver, seconds a message.

    Attributes:
        costs: The costs, as above. [D, D, 8]
        channel: the link's channels, -1 after the last and without a link. [D, D, W]
        num_channels: the number of channels, C.
        sends_cost: whether any link costs its sender time.
        receives_cost: whether any link costs its receiver time.
    """

    costs: FloatArray
    channel: IntArray
    num_channels: int
    sends_cost: bool
    receives_cost: bool

    def each(self, cost: int) -> FloatArray:
        """Return one of the costs of all pairs. [D, D]"""
        return self.costs[:, :, cost]


def make_links(cluster: Cluster) -> Links:
    """Return the links of a cluster."""
    costs = np.empty((*cluster.latency.shape, 8))
    per_byte = 1.0 / np.where(cluster.linked, cluster.bandwidth, np.inf)
    costs[:, :, LATENCY], costs[:, :, BANDWIDTH] = cluster.latency, cluster.bandwidth
    costs[:, :, PER_BYTE] = per_byte
    costs[:, :, PACE] = per_byte
    costs[:, :, BUSY] = cluster.sender_busy
    links = Links(
        costs=costs,
        channel=cluster.channels,
        num_channels=cluster.num_channels,
        sends_cost=False,
        receives_cost=False,
    )
    return with_overheads(links, cluster.send_overhead, cluster.receive_overhead)


def with_overheads(links: Links, send: FloatArray, receive: FloatArray) -> Links:
    """Return the same links with other overheads in seconds a message. [D, D], [D, D]"""
    costs = links.costs.copy()
    costs[:, :, DELAY] = costs[:, :, LATENCY] + receive
    costs[:, :, SENDS] = send
    costs[:, :, RECEIVES] = receive
    copies_there = costs[:, :, PACE] > costs[:, :, PER_BYTE]
    return links._replace(
        costs=costs,
        sends_cost=bool((send > 0).any() or costs[:, :, BUSY].any()),
        receives_cost=bool((receive > 0).any() or copies_there.any()),
    )


def reverse_links(links: Links) -> Links:
    """Return the links as a step read backwards has them."""
    costs = links.costs.transpose(1, 0, 2).copy()
    copies_there = costs[:, :, BUSY] > 0.0
    costs[copies_there, BANDWIDTH] = np.inf
    costs[copies_there, PER_BYTE] = 0.0
    costs[:, :, BUSY] = 0.0
    channel = np.ascontiguousarray(links.channel.transpose(1, 0, 2))
    send = costs[:, :, RECEIVES].copy()
    receive = costs[:, :, SENDS].copy()
    return with_overheads(links._replace(costs=costs, channel=channel), send, receive)


def without_gaps(links: Links) -> Links:
    """Return the same with no delay in seconds where there is no link, for sums over all pairs."""
    costs = links.costs.copy()
    gaps = links.channel[:, :, 0] < 0
    costs[gaps, LATENCY] = costs[gaps, DELAY] = 0.0
    return links._replace(costs=costs)


@inner(_nrt=False)
def has_link(links: Links, source: int, target: int) -> bool:
    """Return whether there is a link."""
    return links.channel[source, target, 0] >= 0


@inner(_nrt=False)
def seconds_between(links: Links, source: int, target: int, size: float) -> float:
    """Return the seconds from the end of its producer until a message of ``size`` bytes may be
    consumed.

    On an idle link. It multiplies where the simulator divides: equal but for rounding, and faster.
    """
    return links.costs[source, target, DELAY] + size * links.costs[source, target, PACE]


@inner(_nrt=False)
def service_time(links: Links, source: int, target: int, size: float) -> float:
    """Return the seconds that a message of ``size`` bytes holds its channels."""
    return size / links.costs[source, target, BANDWIDTH]


@inner(_nrt=False)
def compute_arrival(
    links: Links, source: int, target: int, size: float, begin: float
) -> float:
    """Return the seconds at which a message is there whose service begins at ``begin``;
    multiplied.
    """
    return (
        begin
        + size * links.costs[source, target, PER_BYTE]
        + links.costs[source, target, LATENCY]
    )


@inner(_nrt=False)
def receive_time(links: Links, source: int, target: int, size: float) -> float:
    """Return the seconds that a message of ``size`` bytes takes of its receiver before the
    consuming op.
    """
    copy = size * (
        links.costs[source, target, PACE] - links.costs[source, target, PER_BYTE]
    )
    return links.costs[source, target, RECEIVES] + copy


@inner(_nrt=False)
def send_time(links: Links, source: int, target: int, size: float) -> float:
    """Return the seconds that a message of ``size`` bytes takes of its sender on idle channels."""
    if links.costs[source, target, BUSY] > 0.0:
        copy = size * links.costs[source, target, PER_BYTE]
    else:
        copy = 0.0
    return links.costs[source, target, SENDS] + copy


@inner(_nrt=False)
def send_costs(links: Links, source: int, target: int) -> bool:
    """Return whether a message keeps its sender from its next op."""
    return (
        links.costs[source, target, BUSY] > 0.0
        or links.costs[source, target, SENDS] > 0.0
    )


@inner(_nrt=False)
def find_free_time(
    links: Links, channel_free: FloatArray, source: int, target: int
) -> float:
    """Return the seconds at which all channels of a link are free. ``channel_free``: of each
    channel, [C]
    """
    at = channel_free[Index(links.channel[source, target, 0])]
    for k in range(1, links.channel.shape[2]):
        channel = links.channel[source, target, k]
        if channel >= 0:
            at = max(at, channel_free[Index(channel)])
    return at


@inner(_nrt=False)
def hold_channels(
    links: Links, channel_free: FloatArray, source: int, target: int, until: float
) -> None:
    """Hold all channels of a link until then. ``channel_free``: changed, [C]"""
    channel_free[Index(links.channel[source, target, 0])] = until
    for k in range(1, links.channel.shape[2]):
        channel = links.channel[source, target, k]
        if channel >= 0:
            channel_free[Index(channel)] = until


@inner(_nrt=False)
def restore_links(
    links: Links, tried: FloatArray, channel_free: FloatArray, source: int, target: int
) -> None:
    """Take back what was tried on the channels of a link. ``tried``: changed, [C]"""
    for k in range(links.channel.shape[2]):
        channel = links.channel[source, target, k]
        if channel >= 0:
            tried[channel] = channel_free[channel]


@inner(_nrt=False)
def send(
    links: Links,
    channel_free: FloatArray,
    free: FloatArray,
    source: int,
    target: int,
    size: float,
    now: float,
) -> tuple[float, float]:
    """Serve a message that is queued now; return start and end of service in seconds.

    The overheads and the latency are the caller's to add.

    Args:
        links: what messages cost, and which channels they hold.
        channel_free: seconds at which each channel is free; changed. [C]
        free: seconds at which each device is free; changed where the sender copies. [D]
        source: the device that sends.
        target: receiving device; there is a link.
        size: bytes of the message.
        now: seconds at which the message is queued.
    """
    begin = max(find_free_time(links, channel_free, source, target), now)
    if links.costs[source, target, BUSY] > 0.0:
        begin = max(begin, free[source])
    end = begin + service_time(links, source, target, size)
    hold_channels(links, channel_free, source, target, end)
    if links.costs[source, target, BUSY] > 0.0:
        free[source] = end
    return begin, end


class SendQueues(NamedTuple):
    """Until when channels and devices are taken by messages; changed as messages are booked.

    Attributes:
        channel_free: Seconds at which each channel is free. [C]
        free: Seconds at which each device is free; the sender's is later by what it costs. [D]
        sent: Seconds at which the copies made for each op so far end. [n], or no rows where no link
            costs its sender time
    """

    channel_free: FloatArray
    free: FloatArray
    sent: FloatArray


@inner(_nrt=False)
def fetch_begin(
    links: Links,
    channel_free: FloatArray,
    sent: FloatArray,
    producer: int,
    source: int,
    target: int,
    finish: float,
) -> float:
    """Return the seconds at which ``fetch`` would begin the service of a message; arguments as
    there.
    """
    if links.sends_cost and links.costs[source, target, BUSY] > 0.0:
        finish = max(finish, sent[producer])
    return max(find_free_time(links, channel_free, source, target), finish)


@inner(_nrt=False)
def fetch(
    links: Links,
    queues: SendQueues,
    producer: int,
    source: int,
    target: int,
    size: float,
    finish: float,
) -> float:
    """Book a message of an op whose device may have gone on since; return its arrival in seconds.

    Args:
        links: what messages cost, and which channels they hold.
        queues: until when channels and devices are taken; changed.
        producer: the op that makes the tensor.
        source: the device of the op that sends.
        target: receiving device; there is a link.
        size: bytes of the message.
        finish: seconds at which the producer finishes.
    """
    channel_free, free, sent = queues
    begin = fetch_begin(links, channel_free, sent, producer, source, target, finish)
    end = begin + size * links.costs[source, target, PER_BYTE]
    hold_channels(links, channel_free, source, target, end)
    if links.sends_cost:
        if links.costs[source, target, BUSY] > 0.0:
            last = free[source] <= max(finish, sent[producer])
            free[source] = end if last else free[source] + (end - begin)
            sent[producer] = end
        free[source] += links.costs[source, target, SENDS]
    return end + links.costs[source, target, LATENCY]


@inner(_nrt=False)
def pay_overheads(
    links: Links,
    free: FloatArray,
    told: BoolArray,
    tensors: IntArray,
    source: IntArray,
    size: FloatArray,
    target: int,
) -> float:
    """Book what an op's inputs cost devices in a schedule whose links are never busy.

    Returns:
        Seconds that the messages take of the receiver.

    Args:
        links: what messages cost, and which channels they hold.
        free: seconds at which each device is free; later by what sending costs it. [D]
        told: whether a tensor has been sent to a device; changed. [T, D]
        tensors: the tensors that the op reads.
        source: device of each tensor. [T]
        size: bytes of each tensor. [T]
        target: the device of the op that reads them.
    """
    seconds = 0.0
    target = Index(target)
    for tensor in tensors:
        sender = Index(source[tensor])
        if (
            sender == target
            or told[tensor, target]
            or not has_link(links, sender, target)
        ):
            continue
        told[tensor, target] = True
        free[sender] += links.costs[sender, target, SENDS]
        if links.costs[sender, target, BUSY] > 0.0:
            free[sender] += service_time(links, sender, target, size[tensor])
        seconds += receive_time(links, sender, target, size[tensor])
    return seconds


def mean_seconds(cluster: Cluster, size: FloatArray) -> FloatArray:
    """Return the seconds that ``size`` bytes take over the cluster's mean link, times the share of
    pairs.

    As in HEFT the mean is over all pairs of devices, a device with itself included (cost 0).
    """
    linked = cluster.linked.ravel()
    if not linked.any():
        return np.zeros(len(size))
    delay = (cluster.latency + cluster.receive_overhead).ravel()[linked].mean()
    per_byte = (1.0 / cluster.bandwidth.ravel()[linked]).mean()
    return linked.sum() / linked.size * (delay + size * per_byte)


def message_seconds(size: Number, bandwidth: float, latency: float = 0.0) -> Number:
    """Return the seconds of ``size`` bytes on an idle link that carries ``bandwidth`` bytes per
    second.
    """
    return latency + size / bandwidth


@inner(_nrt=False)
def with_messages(
    seconds: float, messages: float, size: float, latency: float, pace: float
) -> float:
    """Return ``seconds``, and those of messages of ``size`` bytes in all, ``pace`` seconds
    a byte.
    """
    return seconds + messages * latency + size * pace


def sender_seconds(link: Link, size: float) -> float:
    """Return the seconds that a message of ``size`` bytes takes of its sender."""
    return link.send_overhead + (
        message_seconds(size, link.bandwidth) if link.sender_busy else 0.0
    )


def split_message_seconds(
    cluster: Cluster, source: int, target: int, size: float, messages: int
) -> tuple[float, float, float, float]:
    """Return the seconds of service, of latency, of the sender and of the receiver for ``messages``
    at once.

    ``size`` is their bytes in all; there is a link.
    """
    return (
        size / cluster.bandwidth[source, target],
        cluster.latency[source, target],
        messages * cluster.send_overhead[source, target],
        messages * cluster.receive_overhead[source, target],
    )


def list_durations(cluster: Cluster, sizes: FloatArray) -> list[FloatArray]:
    """Return all seconds that `split_message_seconds` may be made of, for messages of these
    bytes.
    """
    rate = np.unique(cluster.bandwidth[cluster.linked])
    fixed = [
        cluster.latency[cluster.linked],
        cluster.send_overhead,
        cluster.receive_overhead,
    ]
    return [*fixed, sizes[:, None] / rate]


def compute_least_seconds(
    cluster: Cluster, sizes: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the least seconds of each message over any link, and those that it occupies a link.

    The first are from the end of its producer until it may be consumed; inf if there is no link.

    Args:
        cluster: The devices and links.
        sizes: Bytes of each message. [messages]
    """
    if not cluster.linked.any():
        return np.full(len(sizes), np.inf), np.zeros(len(sizes))
    seconds_per_byte = 1.0 / cluster.bandwidth[cluster.linked]
    delay = (cluster.latency + cluster.receive_overhead)[cluster.linked]

    # Kinds of links by ascending delay. Only those that have more bandwidth than all before them
    # can be the fastest for a message.
    kinds = np.unique(np.stack([delay, seconds_per_byte], axis=1), axis=0)
    pace = kinds[:, 1]
    fastest_so_far = np.minimum.accumulate(pace)
    fastest_before = np.concatenate(([np.inf], fastest_so_far[:-1]))
    candidates = kinds[pace < fastest_before]
    seconds = [kind_delay + sizes * kind_pace for kind_delay, kind_pace in candidates]
    least_delay = np.asarray(np.min(seconds, axis=0))
    return least_delay, sizes * seconds_per_byte.min()


def compute_most_seconds(cluster: Cluster, sizes: FloatArray) -> float:
    """Return the seconds that messages of these bytes take one by one over the dearest link; 0
    without any.
    """
    if not cluster.linked.any():
        return 0.0
    fixed = cluster.latency + cluster.send_overhead + cluster.receive_overhead
    slowest = cluster.bandwidth[cluster.linked].min()
    return float(fixed[cluster.linked].max() * len(sizes) + sizes.sum() / slowest)
