"""What all-reduces of groups take on a cluster and on copies of it."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.costs.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Group,
    estimate_collective,
)
from gnnplace.errors import InputError
from gnnplace.plans.hybrid.study import reduce_origin
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem.cluster import Cluster, Device, make_preset
from gnnplace.problem.cluster.cluster import ClusterCopies


def all_reduce(
    cluster: Cluster, size: float, groups: int, devices: int, device: int = 0
) -> float:
    """The seconds over one device of every group, the others at the same time."""
    members = range(device, groups * devices, devices)
    return MeshFabric(cluster).collective(ALL_REDUCE, size, members, devices)


def test_nvlink_of_four() -> None:
    """2 * 3 / 4 of the bytes at 150 GB/s, one launch and two levels of 5 us."""
    took = all_reduce(make_preset("nvlink-v100-4"), 3e9, 4, 1)
    assert took == pytest.approx(0.03 + 2 * 5e-6)


def test_a_shared_channel_carries_all_sends() -> None:
    """Two all-reduces of two over one PCIe bridge: four sends at once."""
    took = [all_reduce(make_preset("pcie-v100-4"), 12e9, 2, 2, d) for d in (0, 1)]
    assert took == pytest.approx([4.0 + 1.5 * 10e-6] * 2)


def test_the_network_of_a_server_is_the_slowest_part() -> None:
    """Two servers of four: one send of each ring leaves a server, at 10 GB/s."""
    cluster, waits = make_preset("two-tier-v100-2x4"), 10e-6
    assert all_reduce(cluster, 10e9, 8, 1) == pytest.approx(2 * 7 / 8 + 2.5 * waits)
    assert all_reduce(cluster, 10e9, 4, 2) == pytest.approx(2 * 3 / 4 * 2 + 2 * waits)


def test_one_copy_takes_what_the_cluster_takes() -> None:
    """Whichever copy it is."""
    one, four = (
        MeshFabric(make_preset("pcie-v100-4")),
        MeshFabric(make_preset("4xpcie-v100-4")),
    )
    for op in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        took = four.collective(op, 1e9, [8, 10], 2)
        assert took == one.collective(op, 1e9, [0, 2], 2) > 0


def test_copies_talk_over_a_network() -> None:
    """By hand: four copies of four devices, groups of two: two members a copy, two all-reduces."""
    one = make_preset("nvlink-v100-4")
    cluster = ClusterCopies(one, 4, latency=1e-4, bandwidth=5e9).joined("four")
    inside = MeshFabric(one)
    stages = sum(
        inside.collective(op, 1e9, [0, 2]) for op in (REDUCE_SCATTER, ALL_GATHER)
    )
    between = 2 * 3 / 4 * 2 * 1e9 / 5e9 + 2 * 1e-4
    assert all_reduce(cluster, 1e9, 8, 2) == pytest.approx(stages + between)
    assert all_reduce(cluster, 1e9, 4, 4) == pytest.approx(2 * between - 2e-4)
    # With a card for each GPU every member's ring has one of its own.
    own = ClusterCopies(one, 4, latency=1e-4, bandwidth=5e9, shared=False)
    between = 2 * 3 / 4 * (1e9 / 2) / 5e9 + 2 * 1e-4
    took = all_reduce(own.joined("four"), 1e9, 8, 2)
    assert took == pytest.approx(stages + between)
    # Gathered bytes cross once; of an all-to-all every member's for the three other copies.
    fabric = MeshFabric(cluster)
    members = range(0, 16, 2)
    gathered = fabric.collective(ALL_GATHER, 1e9, members, 2)
    within = inside.collective(ALL_GATHER, 1e9, [0, 2])
    assert gathered == pytest.approx(within + 3 / 4 * 2e9 / 5e9 + 1.5 * 1e-4)
    dispatched = fabric.collective(ALL_TO_ALL, 1e9, members, 2)
    within = inside.collective(ALL_TO_ALL, 1e9 / 4, [0, 2])
    assert dispatched == pytest.approx(within + 3 / 4 * 4e9 / 5e9 + 1.5 * 1e-4)


def test_links_of_copies() -> None:
    """Those of the cluster inside, of its own channels; between copies one card a direction."""
    one, two = make_preset("pcie-v100-4"), make_preset("2xpcie-v100-4")
    assert two.num_devices == 8
    assert [d.name for d in two.devices] == [f"gpu:{i}" for i in range(8)]
    for start in (0, 4):
        part = two.part(range(start, start + 4))
        assert part.pattern(range(4)) == one.pattern(range(4))
    assert two.bandwidth[0, 4] == two.bandwidth[7, 1] == 10e9
    assert two.latency[0, 4] == 10e-6
    inside, other, out, back = (
        two.channels[p] for p in ((0, 1), (4, 5), (0, 4), (5, 1))
    )
    assert len({inside[0], other[0], out[0], back[0]}) == 4
    assert np.array_equal(two.channels[1, 7], out)


def test_one_device_has_nothing_to_reduce() -> None:
    """No time at all."""
    assert all_reduce(make_preset("nvlink-v100-4"), 1e9, 1, 4, 3) == 0.0


def test_missing_links_are_refused() -> None:
    """One line that says which."""
    devices = tuple(Device(name=n, kind="cpu", memory=1e9) for n in ("a", "b"))
    with pytest.raises(InputError, match="a, b are not all linked"):
        all_reduce(Cluster(devices), 1.0, 2, 1)


def test_a_known_fabric_takes_what_was_measured() -> None:
    """Eight H100 behind an NVSwitch; on two servers of eight, every card has one ring."""
    eight = Group("nvswitch-h100", None, 1, 8)
    took = all_reduce(make_preset("nvswitch-h100-8"), 1e8, 8, 1)
    assert took == estimate_collective(ALL_REDUCE, 1e8, eight).seconds
    two = Group(None, "infiniband-dgx-h100", 2, 1)
    servers = make_preset("dgx-h100-2x8")
    took_of = {all_reduce(servers, 1e8, 2, 8, device) for device in range(8)}
    assert took_of == {estimate_collective(ALL_REDUCE, 1e8, two).seconds}


def test_what_a_fabric_is_known_by() -> None:
    """Measured figures of all devices of the cluster; of a formula's nothing is said."""
    known = MeshFabric(make_preset("2xnvswitch-h100-8"))
    assert reduce_origin(known, 8).startswith("measured (expected error")
    assert "between copies 10 GB/s and 10 us" in reduce_origin(known, 16)
    assert (
        reduce_origin(MeshFabric(make_preset("nvlink-h100-8")), 8)
        == "predicted from the cluster's links"
    )
