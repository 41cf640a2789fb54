"""Types of clusters for drawn problems: they differ in shared channels and slower devices.

* ``shared``: one bus for all; twice the drawn bandwidth.
* ``own``: a channel of its own for every pair.
* ``mixed``: as ``own``, with some devices of a slower kind.
* ``two-tier``: two halves; four times the drawn bandwidth inside, half of it between them, where
  each half has one channel to the other.

A learner trains on ``TRAIN_CLUSTERS``; ``two-tier`` is kept for the test.
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
    """Check that there is such a type.

    Raises:
        InputError: There is none; the names are listed.
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
    """Return a cluster of kinds ``fast`` and, where it is mixed, ``slow``.

    Args:
        cluster_type: The type of the cluster, one of ``CLUSTERS``.
        count: The number of devices.
        bandwidth: Bytes a second that the type's factors scale.
        latency: Seconds of a message.
        memory: Bytes of each device.
        rng: Draws how many are slow.
    """
    if cluster_type == "mixed" and count > 1:
        slow = int(rng.integers(1, count))
    else:
        slow = 0
    kinds = ["fast"] * (count - slow) + ["slow"] * slow
    devices = tuple(
        Device(name=f"device:{i}", kind=kind, memory=memory)
        for i, kind in enumerate(kinds)
    )
    per_server = max(1, (count + 1) // 2)
    links = []
    for i, j in permutations(range(count), 2):
        channel, factor = _channel(cluster_type, i // per_server, j // per_server)
        a = devices[i].name
        b = devices[j].name
        speed = bandwidth * factor
        link = Link(
            source=a, target=b, latency=latency, bandwidth=speed, channel=channel
        )
        links.append(link)
    return Cluster(devices, tuple(links), cluster_type)


def _channel(cluster_type: str, here: int, there: int) -> tuple[str | None, float]:
    """Return the channel of a link and its bandwidth over the drawn one."""
    if cluster_type == "shared":
        return "bus", 2.0
    if cluster_type == "two-tier" and here != there:
        return f"network {here}", 0.5
    return None, 4.0 if cluster_type == "two-tier" else 1.0
