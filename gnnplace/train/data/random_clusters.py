"""Makes the clusters of random problems, which differ in shared channels and in slower devices.

There are four types of clusters:

* ``shared``: all links share one bus, with twice the drawn bandwidth.
* ``own``: every link has a channel of its own, with the drawn bandwidth.
* ``mixed``: as ``own``, and some devices are of a slower kind.
* ``two-tier``: two halves. A link inside a half has a channel of its own with four times the drawn
  bandwidth. All links from one half to the other share one channel with half of it.

A learner trains on ``TRAIN_CLUSTERS``, and is tested on ``two-tier`` as well.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from gnnplace.errors import InputError
from gnnplace.problem import Cluster, Device, Link

Generator = np.random.Generator
TRAIN_CLUSTERS = ("shared", "own", "mixed")
CLUSTERS = (*TRAIN_CLUSTERS, "two-tier")


def check_cluster(cluster_type: str) -> None:
    """Check that there is such a type of cluster.

    Raises:
        InputError: If there is none; the message lists the types.
    """
    if cluster_type not in CLUSTERS:
        raise InputError(
            f"cluster {cluster_type!r}: unknown; clusters: {', '.join(CLUSTERS)}"
        )


def make_cluster(
    cluster_type: str,
    count: int,
    bandwidth: float,
    latency: float,
    memory: float,
    rng: Generator,
) -> Cluster:
    """Return a cluster of devices of the kind ``fast`` and, if it is mixed, some ``slow`` ones.

    Args:
        cluster_type: The type of the cluster, one of ``CLUSTERS``.
        count: The number of devices.
        bandwidth: The drawn bandwidth, bytes a second. The type may multiply it.
        latency: Seconds that every message takes besides its bytes.
        memory: Bytes of each device.
        rng: Draws how many devices of a mixed cluster are slow: at least one, and not all.
    """
    num_slow = 0
    if cluster_type == "mixed" and count > 1:
        num_slow = int(rng.integers(1, count))
    kinds = ["fast"] * (count - num_slow) + ["slow"] * num_slow
    devices = tuple(
        Device(name=f"device:{i}", kind=kind, memory=memory)
        for i, kind in enumerate(kinds)
    )
    half = max(1, (count + 1) // 2)  # devices of the first half
    links = []
    for i, j in permutations(range(count), 2):
        channel, factor = _find_channel(cluster_type, i // half, j // half)
        link = Link(
            source=devices[i].name,
            target=devices[j].name,
            latency=latency,
            bandwidth=bandwidth * factor,
            channel=channel,
        )
        links.append(link)
    return Cluster(devices, tuple(links), cluster_type)


def _find_channel(
    cluster_type: str, source_half: int, target_half: int
) -> tuple[str | None, float]:
    """Return a link's channel, None for one of its own, and its bandwidth over the drawn one.

    Args:
        cluster_type: The type of the cluster.
        source_half: 0 or 1: the half of the cluster that the link comes from.
        target_half: The half that it goes to.
    """
    if cluster_type == "shared":
        return "bus", 2.0
    if cluster_type != "two-tier":
        return None, 1.0
    if source_half != target_half:
        return f"network {source_half}", 0.5
    return None, 4.0
