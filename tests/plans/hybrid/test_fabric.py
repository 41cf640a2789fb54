"""Links, rings and groups of a fabric."""

from __future__ import annotations

import pytest

from gnnplace.costs.collectives import ALL_REDUCE, Group, collective
from gnnplace.errors import InputError
from gnnplace.plans.hybrid.fabric import ClusterCopies, signature
from gnnplace.problem.cluster import Cluster, Device, Link, preset


def test_a_ring_takes_what_the_book_says() -> None:
    """NVLink of four: 2 * 3 / 4 of the bytes at 150 GB/s, six latencies."""
    ring = ClusterCopies(preset("nvlink-v100-4")).rings([[0, 1, 2, 3]])[0]
    assert ring.pace == pytest.approx(1.5 / 150e9)
    assert ring.latency == pytest.approx(6 * 5e-6)
    assert ring.seconds(3e9) == pytest.approx(0.03 + 3e-5)
    assert ring.overlaps


def test_a_shared_channel_carries_all_sends() -> None:
    """Two rings of two over one PCIe bridge: four sends at once."""
    rings = ClusterCopies(preset("pcie-v100-4")).rings([[0, 2], [1, 3]])
    assert [ring.pace for ring in rings] == pytest.approx([1.0 * 4 / 12e9] * 2)


def test_the_network_of_a_server_is_the_slowest_part() -> None:
    """Two servers of four: one send of each ring leaves a server, at 10 GB/s."""
    fabric = ClusterCopies(preset("two-tier-v100-2x4"))
    assert fabric.rings([list(range(8))])[0].pace == pytest.approx(2 * 7 / 8 / 10e9)
    pairs = fabric.rings([[0, 2, 4, 6], [1, 3, 5, 7]])
    assert pairs[0].pace == pytest.approx(2 * 3 / 4 * 2 / 10e9)


def test_copies_of_a_cluster_talk_over_a_network() -> None:
    """Device 5 of a fabric of four is device 1 of the second copy."""
    fabric = ClusterCopies(preset("nvlink-v100-4"), latency=1e-4, bandwidth=5e9)
    assert fabric.way(1, 5) == fabric.way(2, 4)
    assert fabric.way(5, 1).bandwidth == 5e9
    assert fabric.way(4, 5).bandwidth == 150e9
    ring = fabric.rings([list(range(8))])[0]
    assert ring.latency == pytest.approx(14 * 1e-4)


def test_one_device_has_nothing_to_reduce() -> None:
    """No time at all."""
    assert ClusterCopies(preset("nvlink-v100-4")).rings([[3]])[0].seconds(1e9) == 0.0


def test_devices_that_copy_themselves_do_not_overlap() -> None:
    """CPU workers."""
    devices = tuple(Device(name=n, kind="cpu", memory=1e9) for n in ("a", "b"))
    links = tuple(
        Link(source=x, target=y, latency=0.0, bandwidth=1e9, sender_busy=True)
        for x, y in (("a", "b"), ("b", "a"))
    )
    assert not ClusterCopies(Cluster(devices, links)).rings([[0, 1]])[0].overlaps


def test_missing_links_and_groups_across_copies_are_refused() -> None:
    """One line that says which."""
    devices = tuple(Device(name=n, kind="cpu", memory=1e9) for n in ("a", "b"))
    fabric = ClusterCopies(Cluster(devices))
    with pytest.raises(InputError, match="no link from 'a' to 'b'"):
        fabric.rings([[0, 1]])
    with pytest.raises(InputError, match="does not fit"):
        fabric.group(1, 2)
    with pytest.raises(InputError, match="network"):
        ClusterCopies(Cluster(devices), bandwidth=0.0)


def test_alike_groups_have_one_signature() -> None:
    """Pairs inside servers are alike, pairs across are not."""
    fabric = ClusterCopies(preset("two-tier-v100-2x4"))
    assert signature(fabric.group(0, 2)) == signature(fabric.group(6, 2))
    assert signature(fabric.group(0, 2)) != signature(fabric.group(3, 2))
    mixed = ClusterCopies(preset("mixed-a100-t4-4"))
    assert signature(mixed.group(0, 2)) != signature(mixed.group(2, 2))


def test_a_known_fabric_takes_what_was_measured():
    """Eight H100 behind an NVSwitch; on two servers of eight, every card has one ring."""
    (ring,) = ClusterCopies(preset("nvswitch-h100-8")).rings([range(8)])
    eight = Group("nvswitch-h100", None, 1, 8)
    assert ring.seconds(1e8) == collective(ALL_REDUCE, 1e8, eight).seconds
    rings = ClusterCopies(preset("dgx-h100-2x8")).rings([[i, i + 8] for i in range(8)])
    two = Group(None, "infiniband-dgx-h100", 2, 1)
    assert {ring.seconds(1e8) for ring in rings} == {collective(ALL_REDUCE, 1e8, two).seconds}


def test_rings_on_one_channel_share_it():
    """Two rings over all four devices of a PCIe without peer copies send through the same ports."""
    one, other = ClusterCopies(preset("pcie-rtx-3090-4")).rings([range(4), range(4)])
    (alone,) = ClusterCopies(preset("pcie-rtx-3090-4")).rings([range(4)])
    assert one.seconds(1e8) == other.seconds(1e8) == 2 * alone.seconds(1e8)


def test_what_a_fabric_is_known_by():
    known = ClusterCopies(preset("nvswitch-h100-8")).known(25e6)
    assert known is not None
    assert known.provenance == "measured"
    assert ClusterCopies(preset("nvlink-h100-8")).known(25e6) is None
    (copies,) = ClusterCopies(preset("nvswitch-h100-8")).rings([range(16)])  # joined by --network-*
    assert copies.seconds(1e8) == 1e8 * copies.pace + copies.latency
