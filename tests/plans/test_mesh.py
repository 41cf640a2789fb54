from __future__ import annotations

import pytest

from gnnplace.costs.collectives import ALL_GATHER, ALL_REDUCE, share
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem.cluster import Cluster, Device, Link

INSIDE, ACROSS = 3e11, 1e10


def servers(shared: bool) -> MeshFabric:
    """Two servers of four whose links name no fabric; between them a card each, or one a server."""
    devices = tuple(Device(name=f"gpu:{i}", kind="a100", memory=8e10) for i in range(8))
    links = tuple(
        Link(
            source=f"gpu:{i}", target=f"gpu:{k}", latency=0.0,
            bandwidth=INSIDE if i // 4 == k // 4 else ACROSS,
            channel=f"card {i // 4}" if shared and i // 4 != k // 4 else None,
        )
        for i in range(8) for k in range(8) if i != k
    )  # fmt: skip
    return MeshFabric(Cluster(devices, links))


@pytest.mark.parametrize("op", [ALL_GATHER, ALL_REDUCE])
def test_a_ring_over_servers_has_a_card_for_each_of_its_members_there(op):
    """NCCL runs a ring a card: four times the bytes of one, unless a server has one card."""
    own, one, size = servers(shared=False), servers(shared=True), 1e9
    everyone = range(8)
    assert own.collective(op, size, everyone) == pytest.approx(
        share(op, 8) * size / (4 * ACROSS)
    )
    assert one.collective(op, size, everyone) == pytest.approx(
        share(op, 8) * size / ACROSS
    )


def test_one_member_a_server_has_one_card_and_a_server_alone_its_own_links():
    fabric = servers(shared=False)
    assert fabric.collective(ALL_GATHER, 1e9, (0, 4)) == pytest.approx(0.5e9 / ACROSS)
    assert fabric.collective(ALL_GATHER, 1e9, range(4)) == pytest.approx(
        0.75e9 / INSIDE
    )
