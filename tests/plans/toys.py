"""Chains whose costs are given, and clusters for them."""

import itertools
import math

import numpy as np

from gnnplace.plans.mesh import Mesh
from gnnplace.plans.search.draft import Draft
from gnnplace.plans.search.stage import Stage
from gnnplace.plans.segments.chain import FASTEST, Chain, Segment, SegmentCosts
from gnnplace.problem.cluster import Cluster, Device, Link

SLOW = {"t4": 3.0}  # seconds on a kind of device beside those on others


class Given:
    """Costs that grow with examples and fall with shards, not quite in proportion."""

    is_captured = False

    def __init__(self, rng, count):
        self.seconds = rng.uniform(0.5, 2.0, (3, count))
        self.saved = rng.uniform(1.0, 4.0, count)
        self.parameters = rng.uniform(1.0, 5.0, count)
        self.tied = np.zeros(count)
        self.part = 0.0

    def costs(self, kind, axes, examples, choice=FASTEST):
        shards = math.prod(axes)
        seconds = self.seconds * SLOW.get(kind, 1.0)
        forward, backward, weights = seconds * (0.1 + examples) / shards**0.8
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
            tied=self.tied / shards,
            attention=self.part * forward,
            scores=0.6 * (self.part > 0) * self.saved * examples,
            summed=np.zeros((2 ** len(axes) - 1, 1)),
        )


def chain(rng, count=5, batch=4, tied=(), attention=0.0):
    """With `attention`, a part of the forward pass, two segments are a layer."""
    names = [f"h.{i // 2}.s{i}" if attention else f"s{i}" for i in range(count)]
    segments = tuple(Segment(f"s{i}", (f"s{i}",), (n,), i) for i, n in enumerate(names))
    border = np.array([0.0, *[0.5] * (count - 1), 0.0])
    source = Given(rng, count)
    source.part = attention
    for one in tied:
        source.tied[list(one.segments)] += one.elements
    return Chain("toy", "f" * 64, segments, border, source, batch, tied=tied)


def cluster(count=4, memory=1e9, bandwidth=50.0, kinds=()):
    kind = [*kinds, *["a100"] * (count - len(kinds))]
    devices = tuple(
        Device(name=f"gpu:{i}", kind=kind[i], memory=memory) for i in range(count)
    )
    links = tuple(
        Link(source=a.name, target=b.name, latency=1e-3, bandwidth=bandwidth)
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(devices, links, "toy")


def all_drafts(model, machine):
    """Every cut, every row of meshes, every size of micro-batches; nothing recomputed."""
    count, devices = len(model), machine.num_devices
    shapes = [(r, t) for r in (1, 2, 3, 4) for t in (1, 2, 4) if r * t <= devices]
    for size in (d for d in range(1, model.batch + 1) if model.batch % d == 0):
        for stages in range(1, min(count, devices) + 1):
            for row in itertools.product(shapes, repeat=stages):
                if sum(r * t for r, t in row) > devices or any(
                    size % r for r, _ in row
                ):
                    continue
                first = [0, *itertools.accumulate(r * t for r, t in row)]
                for cuts in itertools.combinations(range(1, count), stages - 1):
                    bounds = [0, *cuts, count]
                    made = [
                        Stage(a, b, Mesh(f, r, t), int(r > 1))
                        for (a, b), f, (r, t) in zip(
                            itertools.pairwise(bounds), first, row, strict=False
                        )
                    ]
                    yield Draft(size, model.batch // size, "1f1b", tuple(made))
