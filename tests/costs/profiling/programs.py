"""A small program and clusters for the tests of this room."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

from gnnplace import zoo
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.tracing.models import capture, capture_model
from gnnplace.tracing.program.program import Program


def captured(
    name: str = "small_resnet", optimizer: str = "adamw", **size: Any
) -> Program:
    """A training step, captured now."""
    work = zoo.build(name, **({"batch": 2} | size))
    return capture(
        work.model, work.inputs, loss=work.loss, optimizer=optimizer, name=name
    )


small = cache(captured)  # Captured once for all the tests, none of which changes it.


@cache
def faked(spec: str) -> Program:
    """A model's program without what its tensors hold, captured once for all the tests."""
    return capture_model(spec, fake=True)


def cluster(*kinds: str) -> Cluster:
    """Devices of these kinds, all linked."""
    devices = tuple(
        Device(name=f"d{i}", kind=k, memory=1e10) for i, k in enumerate(kinds)
    )
    links = tuple(
        Link(source=a.name, target=b.name, latency=1e-6, bandwidth=1e10)
        for a, b in permutations(devices, 2)
    )
    return Cluster(devices, links)
