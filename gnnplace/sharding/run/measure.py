"""Speeds of the devices at hand and of collectives between them, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.costs.collectives import ALL_REDUCE, share
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED
from gnnplace.sharding.run.move import redistributed

SMALL, LARGE = 256, 1 << 20
"""Elements of the tensors whose sums are timed."""
ROUNDS = 15
"""Runs of a collective, of which the least counts."""
SIDE, LARGE_SIDE = 512, 4096
"""Rows and columns of the product that is timed on CPUs and on GPUs."""


def measure_machine(mesh: DeviceMesh) -> MeshMachine:
    """Speeds of a device and of collectives over the mesh's first dimension; all devices call it.

    The numbers are those of the first device, so that all plan alike.
    """
    latency, bandwidth = _collectives(mesh)
    kind = mesh.device_type
    figures = [_product_rate(kind), bandwidth, latency, _overhead(kind)]
    shared = torch.tensor(figures, dtype=torch.float64, device=kind)
    first_says(shared, mesh)
    flops, bandwidth, latency, overhead = shared.tolist()
    return MeshMachine(flops=flops, bandwidth=bandwidth, latency=latency, overhead=overhead)


def first_says(tensor: torch.Tensor, mesh: DeviceMesh) -> None:
    """Gives a tensor the numbers that the mesh's first device has."""
    for dim in range(mesh.ndim):
        dist.broadcast(tensor, group=mesh.get_group(dim), group_src=0)


def _collectives(mesh: DeviceMesh) -> tuple[float, float]:
    """Seconds of a small sum, and the bytes a second that a large one reaches."""
    size = mesh.size(0)
    if size == 1:
        return 0.0, 1e12
    before = (PARTIAL, *[REPLICATED] * (mesh.ndim - 1))
    after = (REPLICATED,) * mesh.ndim

    def reduce(count: int) -> float:
        local = torch.ones(count, device=mesh.device_type)
        return _timed(lambda: redistributed(local, mesh, before, after), mesh.device_type)

    latency, large = reduce(SMALL), reduce(LARGE)
    moved = share(ALL_REDUCE, size) * 4 * LARGE
    return latency, moved / max(large - latency, 1e-9)


def _timed(work: Callable[[], object], kind: str) -> float:
    """The least seconds after a first time: what takes longer was disturbed by other processes."""
    work()
    if kind == "cuda":
        torch.cuda.synchronize()
    least = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        if kind == "cuda":
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - start)
    return least


def _product_rate(kind: str) -> float:
    side = LARGE_SIDE if kind == "cuda" else SIDE
    a = torch.ones(side, side, device=kind)
    return 2.0 * side**3 / _timed(lambda: a @ a, kind)


def _overhead(kind: str) -> float:
    """Seconds of an operation on next to nothing, forward and backward."""
    x = torch.ones(4, requires_grad=True, device=kind)
    return _timed(lambda: torch.relu(x).sum().backward(), kind) / 2
