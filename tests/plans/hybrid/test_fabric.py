"""What a cluster and copies of it take to all-reduce, and their groups."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gnnplace.costs.collectives import ALL_REDUCE, Group, collective
from gnnplace.errors import InputError
from gnnplace.plans.hybrid.fabric import ClusterCopies
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem.cluster import Cluster, Device, Link, preset


def workers(links: Sequence[Link] = ()) -> Cluster:
    """Two CPU workers."""
    return Cluster(
        tuple(Device(name=n, kind="cpu", memory=1e9) for n in ("a", "b")), tuple(links)
    )


def test_within_a_copy_it_is_what_a_plan_takes() -> None:
    """NVLink of four: 2 * 3 / 4 of the bytes at 150 GB/s, one launch and two levels of 5 us."""
    cluster = preset("nvlink-v100-4")
    fabric = ClusterCopies(cluster)
    assert fabric.all_reduce(0, 3e9, 4, 1) == pytest.approx(0.03 + 2 * 5e-6)
    assert fabric.all_reduce(0, 3e9, 4, 1) == MeshFabric(cluster).collective(
        ALL_REDUCE, 3e9, range(4)
    )
    assert fabric.overlaps


def test_a_shared_channel_carries_all_sends() -> None:
    """Two all-reduces of two over one PCIe bridge: four sends at once."""
    fabric = ClusterCopies(preset("pcie-v100-4"))
    took = [fabric.all_reduce(device, 12e9, 2, 2) for device in (0, 1)]
    assert took == pytest.approx([4.0 + 1.5 * 10e-6] * 2)


def test_the_network_of_a_server_is_the_slowest_part() -> None:
    """Two servers of four: one send of each ring leaves a server, at 10 GB/s."""
    fabric, waits = ClusterCopies(preset("two-tier-v100-2x4")), 10e-6
    assert fabric.all_reduce(0, 10e9, 8, 1) == pytest.approx(2 * 7 / 8 + 2.5 * waits)
    assert fabric.all_reduce(0, 10e9, 4, 2) == pytest.approx(2 * 3 / 4 * 2 + 2 * waits)


def test_copies_of_a_cluster_talk_over_a_network() -> None:
    """By hand: four copies of four devices, groups of two: two members a copy, two all-reduces."""
    fabric = ClusterCopies(preset("nvlink-v100-4"), latency=1e-4, bandwidth=5e9)
    inside = MeshFabric(preset("nvlink-v100-4"))
    stages = [
        inside.collective(op, 1e9, [0, 2]) for op in ("reduce_scatter", "all_gather")
    ]
    between = 2 * 3 / 4 * 2 * 1e9 / 5e9 + 2 * 1e-4
    assert fabric.all_reduce(0, 1e9, 8, 2) == pytest.approx(sum(stages) + between)
    assert fabric.all_reduce(0, 1e9, 4, 4) == pytest.approx(2 * between - 2e-4)


def test_one_device_has_nothing_to_reduce() -> None:
    """No time at all."""
    assert ClusterCopies(preset("nvlink-v100-4")).all_reduce(3, 1e9, 1, 4) == 0.0


def test_devices_that_copy_themselves_do_not_overlap() -> None:
    """CPU workers."""
    pairs = (("a", "b"), ("b", "a"))
    links = [
        Link(source=x, target=y, latency=0.0, bandwidth=1e9, sender_busy=True)
        for x, y in pairs
    ]
    assert not ClusterCopies(workers(links)).overlaps


def test_missing_links_and_bad_networks_are_refused() -> None:
    """One line that says which."""
    fabric = ClusterCopies(workers())
    with pytest.raises(InputError, match="a, b are not all linked"):
        fabric.all_reduce(0, 1.0, 2, 1)
    with pytest.raises(InputError, match="network"):
        ClusterCopies(workers(), bandwidth=0.0)


def test_a_known_fabric_takes_what_was_measured() -> None:
    """Eight H100 behind an NVSwitch; on two servers of eight, every card has one ring."""
    eight = Group("nvswitch-h100", None, 1, 8)
    took = ClusterCopies(preset("nvswitch-h100-8")).all_reduce(0, 1e8, 8, 1)
    assert took == collective(ALL_REDUCE, 1e8, eight).seconds
    two = Group(None, "infiniband-dgx-h100", 2, 1)
    fabric = ClusterCopies(preset("dgx-h100-2x8"))
    took = {fabric.all_reduce(device, 1e8, 2, 8) for device in range(8)}
    assert took == {collective(ALL_REDUCE, 1e8, two).seconds}


def test_what_a_fabric_is_known_by() -> None:
    """Measured figures of all devices of the cluster; of a formula's nothing is said."""
    known = ClusterCopies(preset("nvswitch-h100-8"))
    assert known.origin(8).startswith("measured (expected error")
    assert "copies of it from --network-*" in known.origin(16)
    assert (
        ClusterCopies(preset("nvlink-h100-8")).origin(8)
        == "predicted from the cluster's links"
    )
