from __future__ import annotations

import pytest

from gnnplace.costs.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    Group,
    estimate_collective,
)
from gnnplace.costs.frameworks.constants import load_framework_constants
from gnnplace.costs.network import ServerNetwork, get_network
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.cluster.presets import make_preset


def network(cluster: Cluster, name: str = "pytorch") -> ServerNetwork:
    """As a framework's constants see a cluster."""
    return get_network(cluster, load_framework_constants(name))


def of_links(channel: str | None) -> Cluster:
    """Two servers of two whose links name no fabric."""
    devices = tuple(Device(name=f"gpu:{i}", kind="h100", memory=8e10) for i in range(4))
    links = tuple(
        Link(
            source=f"gpu:{i}", target=f"gpu:{k}", latency=1e-6,
            bandwidth=3e11 if i // 2 == k // 2 else 1e10,
            channel=None if i // 2 == k // 2 or channel is None else f"{channel} {i // 2}",
        )
        for i in range(4) for k in range(4) if i != k
    )  # fmt: skip
    return Cluster(devices, links)


def test_servers_are_read_off_fabrics_and_off_bandwidths():
    found = network(make_preset("dgx-h100-4x8"))
    assert (found.per_server, found.fabric, found.card) == (8, "nvswitch-h100", 50e9)
    plain = network(of_links(None))
    assert (plain.per_server, plain.fabric) == (2, None)
    shared = network(of_links("rail"))
    # Both GPUs of a server share its channel.
    assert shared.card == pytest.approx(plain.card / 2)


def test_inside_a_server_the_table_answers():
    own = network(make_preset("dgx-h100-4x8"))
    group = Group("nvswitch-h100", per_server=8)
    assert (
        own.exchange(ALL_GATHER, 8, 1e8, 8)
        == estimate_collective(ALL_GATHER, 1e8, group).seconds
    )
    assert own.reduce(8, 1e8, 8) == estimate_collective(ALL_REDUCE, 1e8, group).seconds


def test_a_ring_over_servers_has_all_cards_of_a_server():
    """Eight cards of 50 GB/s at 0.9, (n - 1) / n of the bytes and 15 latencies."""
    own = network(make_preset("dgx-h100-4x8"))
    rates = own.rates
    seconds = (
        15 / 16 * 4e9 / min(8 * 50e9 * rates["card_gather"], rates["server_links"])
    )
    assert own.exchange(ALL_GATHER, 16, 4e9, 8) == pytest.approx(
        seconds + 15 * rates["ring_latency"]
    )
    one = own.exchange(ALL_GATHER, 4, 4e9, 1)
    assert one == pytest.approx(3 / 4 * 4e9 / 45e9 + 3 * rates["ring_latency"])


def test_a_framework_may_have_a_network_of_its_own():
    slow, fast = (
        network(make_preset("dgx-h100-4x8"), n) for n in ("nanotron", "pytorch")
    )
    assert slow.exchange(ALL_GATHER, 16, 1e6, 8) > 5 * fast.exchange(
        ALL_GATHER, 16, 1e6, 8
    )
