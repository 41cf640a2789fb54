"""A user's own measurements in place of the package's."""

import pytest

from gnnplace.costs.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    Exchange,
    Group,
    compute_ring_seconds,
    estimate_collective,
)
from gnnplace.costs.links import MEASURED, NEIGHBOUR
from gnnplace.costs.own import with_measurements
from gnnplace.errors import InputError
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem.cluster import make_preset
from tests.costs.test_nccl_tests import new

SENDS = """\
        1024           256     float     sum      -1    12.02    0.09    0.09      0    12.10    0.08    0.08    N/A
  1073741824     268435456     float     sum      -1  21474.8   50.00   50.00      0  21480.0   49.99   49.99    N/A
"""  # noqa: E501


def write(tmp_path, *runs):
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(runs), encoding="utf-8")
    return str(path)


def test_messages_and_collectives_of_a_server(tmp_path):
    path = write(tmp_path, new(count=4), new("sendrecv_perf", 4, rows=SENDS))
    measured = with_measurements(make_preset("pcie-a100-4"), path)
    for link in measured.cluster.links:
        assert link.bandwidth == pytest.approx(50e9, rel=1e-5)
        assert link.latency == pytest.approx(12.02e-6 - 1024 / 50e9, rel=1e-5)
        assert (link.channel, link.fabric) == ("pcie", "own-inside")
    assert measured.notes == (
        f"12 links inside of servers take 12 us and 50 GB/s, from messages in {path}",
    )
    group = Exchange(measured.cluster, measured.table).group(4)
    reduce = estimate_collective(ALL_REDUCE, 2**20, group, measured.table)
    assert (reduce.seconds, reduce.provenance) == (pytest.approx(45.65e-6), MEASURED)
    assert reduce.source == f"own-inside: {path}"
    gather = estimate_collective(ALL_GATHER, 2**20, group, measured.table)
    assert (gather.seconds, gather.provenance) == (
        pytest.approx(45.65e-6 / 2),
        NEIGHBOUR,
    )


def test_without_messages_the_bus_bandwidth_does(tmp_path):
    measured = with_measurements(make_preset("nvswitch-h200-8"), write(tmp_path, new()))
    link = measured.cluster.links[0]
    assert link.bandwidth == pytest.approx(229.31e9, rel=1e-3)
    # One launch, three levels.
    assert link.latency == pytest.approx(21.3e-6 / 2.5, rel=1e-3)
    assert "from its all-reduce, as it has no sendrecv_perf" in measured.notes[0]


def test_servers_and_what_is_between_them(tmp_path):
    before = make_preset("dgx-h100-2x8")
    path = write(tmp_path, new("sendrecv_perf", 2, ("a", "b"), SENDS))
    links = with_measurements(before, path).cluster.links
    changed = [k.fabric == "own-between" for k in links]
    assert sum(changed) == 128
    for link, old, new_ in zip(links, before.links, changed, strict=True):
        assert new_ == (old.fabric == "infiniband-dgx-h100")
        assert new_ or link == old
    two_tier = with_measurements(make_preset("two-tier-a100-2x4"), path).cluster
    # The slowest, unnamed.
    assert sum(k.fabric == "own-between" for k in two_tier.links) == 32


def test_meshes_reduce_by_them(tmp_path):
    measured = with_measurements(make_preset("pcie-a100-8"), write(tmp_path, new()))
    fabric, every = MeshFabric(measured.cluster, measured.table), range(8)
    assert fabric.collective(ALL_REDUCE, 2**20, every) == pytest.approx(45.65e-6)
    # Through one host bridge.
    both = fabric.collective(ALL_REDUCE, 2**20, every, alike=2)
    assert both == pytest.approx(2 * 45.65e-6)
    # A file has links alone.
    known, link = (MeshFabric(measured.cluster), measured.cluster.links[0])
    ring = compute_ring_seconds(
        ALL_REDUCE, 8, 2**20, link.bandwidth / 8, 2.5 * link.latency
    )
    assert known.collective(ALL_REDUCE, 2**20, every) == pytest.approx(ring)
    alone = link.latency + 2**20 / link.bandwidth
    assert known.send(2**20, 0, 1) == pytest.approx(alone)
    assert known.sends(2**20, [(0, 1), (2, 3)]) > alone


def test_faults(tmp_path):
    path = write(tmp_path, new("sendrecv_perf", 2, ("a", "b"), SENDS))
    with pytest.raises(
        InputError, match="measured links between servers, and the cluster has non"
    ):
        with_measurements(make_preset("nvswitch-h100-8"), path)
    with pytest.raises(InputError, match="an all-to-all alone does not say"):
        with_measurements(
            make_preset("nvswitch-h100-8"), write(tmp_path, new("alltoall_perf"))
        )
    with pytest.raises(InputError, match="its links name no measured fabric"):
        Exchange(make_preset("pcie-a100-8"))


def test_groups_of_an_exchange():
    exchange = Exchange(make_preset("dgx-h100-4x8"))
    assert exchange.group(8) == Group("nvswitch-h100", None, 1, 8)
    assert exchange.group(32) == Group("nvswitch-h100", "infiniband-dgx-h100", 4, 8)
    assert exchange.group(12) == Group("nvswitch-h100", "infiniband-dgx-h100", 2, 6)
    assert exchange.bandwidth == 35.87e9
