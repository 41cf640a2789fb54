"""A made-up training step of any size."""

from __future__ import annotations

import numpy as np

from gnnplace.graph import ComputationGraph
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link

PARTS = ("attention.self", "attention.output", "mlp.up", "mlp.down")


def layered(
    num_ops: int, num_devices: int = 8, layers: int = 25, seed: int = 0
) -> Problem:
    """A chain of layers forward and backward, with skips, whose ops take unequal times."""
    rng, half = np.random.default_rng(seed), num_ops // 2
    layer = np.arange(half) * layers // half
    part = np.arange(half) * layers * len(PARTS) // half % len(PARTS)
    module = [f"encoder.layer.{k}.{PARTS[p]}" for k, p in zip(layer, part, strict=True)]
    names = [f"forward_{i}" for i in range(half)] + [
        f"backward_{i}" for i in range(half)
    ][::-1]
    num_ops = 2 * half
    skip = rng.integers(2, 40, num_ops)
    tensors = []
    for i in range(num_ops - 1):
        readers = {i + 1, int(min(i + skip[i], num_ops - 1))} | (
            {num_ops - 1 - i} if i < half else set()
        )
        tensors.append((i, 65536.0 * float(1 + i % 64), sorted(readers - {i})))
    devices = tuple(
        Device(name=f"gpu:{d}", kind="h200", memory=2e10) for d in range(num_devices)
    )
    links = tuple(
        Link(source=a.name, target=b.name, latency=5e-6, bandwidth=2e11)
        for a in devices
        for b in devices
        if a is not b
    )
    return build_problem(
        "layered",
        ComputationGraph.from_tensors(names, tensors),
        Cluster(devices, links, "made up"),
        {"h200": rng.lognormal(-11.0, 1.0, num_ops)},
        phase=np.repeat([0, 1], half).astype(np.int8),
        module=tuple(module + module[::-1]),
        state=rng.integers(0, 100, num_ops) * 1e4,
    )
