"""Chains whose costs are given, and clusters for them."""

import numpy as np

from gnnplace.cluster import Cluster, Device, Link
from gnnplace.planning.chain import Chain, Segment, SegmentCosts


class Given:
    """Costs that grow with examples and fall with shards, not quite in proportion."""

    def __init__(self, rng, count):
        self.seconds = rng.uniform(0.5, 2.0, (3, count))
        self.saved = rng.uniform(1.0, 4.0, count)
        self.parameters = rng.uniform(1.0, 5.0, count)

    def costs(self, kind, shards, examples):
        forward, backward, weights = self.seconds * (0.1 + examples) / shards**0.8
        count = len(self.saved)
        return SegmentCosts(
            forward,
            backward,
            weights,
            np.full(count, 0.05),
            self.saved * examples,
            np.full(count, 0.5 * examples),
            np.full(count, 0.1),
            self.parameters / shards,
            np.full(count, 0.1),
        )


def chain(rng, count=5, batch=4):
    segments = tuple(Segment(f"s{i}", (f"s{i}",), (f"s{i}",), i) for i in range(count))
    border = np.array([0.0, *[0.5] * (count - 1), 0.0])
    return Chain("toy", "f", segments, border, Given(rng, count), batch)


def cluster(count=4, memory=1e9, bandwidth=50.0):
    devices = tuple(Device(name=f"gpu:{i}", kind="a100", memory=memory) for i in range(count))
    links = tuple(
        Link(source=a.name, target=b.name, latency=1e-3, bandwidth=bandwidth)
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(devices, links, "toy")
