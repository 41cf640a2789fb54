"""Seconds of exchanges of GPUs: inside a server by tables, across servers by rings of all cards.

A group of n GPUs over several servers has rings over all network cards, one for each of its g GPUs
in a server. An all-gather or a reduce-scatter of B bytes takes

    (n - 1) a + B (n - 1) / n / min(b, r g),

with a the latency of a step, b the bandwidth of links inside a server, and r the attained bandwidth
of a card. An all-reduce sends twice the bytes, and its latency is that of a tree of the servers,
2 a log2 of their number (NCCL's; Patarasuk and Yuan, 2009, for the bytes of a ring). Inside one
server `gnnplace.costs.collectives` gives the time.

An all-to-all has no ring: what a GPU sends to other servers passes its own card, whatever the cards
of its neighbours do. With m of its n peers in its own server, B bytes of a GPU take

    max(within, B (1 - m / n) / r') + n / m a,

with r' the attained bandwidth of a card for many messages at once.

If a cluster's links name no fabric, those slower than half of the fastest link are taken to join
servers. Links that share a channel share its bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gnnplace.costs.collectives import (
    ALL_REDUCE,
    ALL_TO_ALL,
    Group,
    compute_ring_seconds,
    estimate_collective,
)
from gnnplace.costs.frameworks.constants import ConstantSet, load_hardware_constants
from gnnplace.problem import FABRICS, Cluster, Link, is_between

NAMED_SIZES = (2, 4, 8)


@dataclass(frozen=True)
class ServerNetwork:
    """The links among the GPUs of a cluster of servers.

    Attributes:
        per_server: GPUs of a server.
        fabric: The fabric inside a server, where it is one whose collectives were measured.
        inside: Bytes a second between two GPUs of a server.
        card: Raw bytes a second of a GPU's part of the network, each way; 0 of one server.
        latency: Seconds of a message inside a server.
        rates: Constants of the hardware by name, with a framework's own where it has them.
    """

    per_server: int
    fabric: str | None
    inside: float
    card: float
    latency: float
    rates: Mapping[str, float]

    def exchange(self, op: str, count: int, size: float, members: int) -> float:
        """Return the seconds of a gather, a scatter or an all-to-all.

        Args:
            op: The collective, as `costs.collectives` names it.
            count: GPUs of the group.
            size: Bytes of all that is gathered or scattered; of an all-to-all those of a GPU.
            members: GPUs of the group in a server.
        """
        if count < 2:
            return 0.0
        if count <= members:
            return self._within(op, count, size)
        rates = self.rates
        if op == ALL_TO_ALL:
            staying = size * members / count
            return self.dispatch(
                count, size, staying, members, rates["card_all_to_all"]
            )
        rate = min(rates["server_links"], self.card * rates["card_gather"] * members)
        if members > 1:
            within = self._within(op, members, size)
        else:
            within = 0.0
        return (
            max(within, (count - 1) / count * size / rate)
            + (count - 1) * rates["ring_latency"]
        )

    def dispatch(
        self, count: int, leaving: float, staying: float, members: int, attained: float
    ) -> float:
        """Return the seconds of an all-to-all over several servers.

        Args:
            count: GPUs of the group.
            leaving: Bytes of a GPU for all servers, its own too.
            staying: Bytes that a GPU sends inside its server, to itself too.
            members: GPUs of the group in a server.
            attained: Share of a card's raw rate that it has.
        """
        if members > 1:
            within = self._within(ALL_TO_ALL, members, staying)
        else:
            within = 0.0
        across = leaving * (1 - members / count) / (self.card * attained)
        return max(within, across) + count / members * self.rates["ring_latency"]

    def reduce(self, count: int, size: float, members: int) -> float:
        """Return the seconds of an all-reduce; arguments as those of `exchange`."""
        if count < 2:
            return 0.0
        if count <= members:
            return self._within(ALL_REDUCE, count, size)
        rates = self.rates
        rate = min(rates["server_links"], self.card * rates["card_reduce"] * members)
        tree = 2 * rates["tree_latency"] * math.log2(max(2.0, count / members))
        return tree + 2 * size * (count - 1) / count / rate

    def message(self, size: float, across: bool) -> float:
        """Return the seconds of the bytes of a message between two stages."""
        rates = self.rates
        if across and self.card:
            rate = self.card * rates["card_message"]
        else:
            rate = self.inside
        return size / min(rate, rates["inside_message"] if not across else rate)

    def _within(self, op: str, count: int, size: float) -> float:
        """Return the seconds of a collective inside one server.

        They are the table's for the next larger group that it has.
        """
        if self.fabric is None:
            return compute_ring_seconds(
                op, count, size, self.inside, self.latency * (count - 1)
            )
        named_size = next((n for n in NAMED_SIZES if n >= count), NAMED_SIZES[-1])
        return estimate_collective(
            op, size, Group(self.fabric, per_server=named_size)
        ).seconds


def get_network(cluster: Cluster, framework: ConstantSet) -> ServerNetwork:
    """Return the network of a cluster's GPUs, as the first of them sees it.

    Args:
        cluster: Its devices in topology order.
        framework: The framework whose constants replace the hardware's of the same name.
    """
    rates = {
        name: framework.constants.get(name, constant).value
        for name, constant in load_hardware_constants().constants.items()
    }
    links = cluster.links_from(0)
    if not links:
        return ServerNetwork(
            per_server=1,
            fabric=None,
            inside=1e12,
            card=0.0,
            latency=0.0,
            rates=rates,
        )
    fastest = max(link.bandwidth for link in links)
    inner = [link for link in links if not _joins_servers(link, fastest)]
    outer = [link for link in links if _joins_servers(link, fastest)]
    per_server = len(inner) + 1
    near = inner[0] if inner else links[0]
    is_measured = near.fabric in FABRICS and not is_between(near.fabric or "")
    if outer:
        card = _card(cluster, outer[0], per_server)
    else:
        card = 0.0
    return ServerNetwork(
        per_server=per_server,
        fabric=near.fabric if is_measured else None,
        inside=near.bandwidth,
        card=card,
        latency=near.latency,
        rates=rates,
    )


def _joins_servers(link: Link, fastest: float) -> bool:
    if link.fabric is not None:
        return is_between(link.fabric)
    return link.bandwidth < fastest / 2


def _card(cluster: Cluster, link: Link, per_server: int) -> float:
    """Return the raw bytes a second of a GPU's card.

    It is the fabric's figure, else the link's own over the GPUs that share it.
    """
    raw = load_hardware_constants().constants.get(f"card.{link.fabric}")
    if raw is not None:
        return raw.value
    channels = set(link.channels)
    sharing = 0
    for source in range(per_server):
        # A target's own port, which all that send to it pass, is no part of the card.
        sharing += any(
            channels & set(outgoing.channels)
            for outgoing in cluster.links_from(source)
            if outgoing.target != link.target
        )
    return link.bandwidth / (
        load_hardware_constants()["card_message"] * max(sharing, 1)
    )
