"""What devices have at most, as accelerate's ``max_memory`` says it: bytes by device.

A device is named, or numbered as PyTorch numbers GPUs: ``0`` is the first device that is no CPU.
Devices that are not named keep what they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gnnplace.errors import InputError
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster

ELSEWHERE = ("cpu", "disk")  # where accelerate keeps what fits on no GPU
CPU = "cpu"


def with_max_memory(problem: Problem, most: Sequence[tuple[str, float]]) -> Problem:
    """The problem with at most so many bytes on some devices.

    Args:
        problem: what is placed.
        most: devices, by their name or number, and bytes.

    Raises:
        InputError: there is no such device.
    """
    if not most:
        return problem
    devices = list(problem.cluster.devices)
    for name, size in most:
        for index in _indices(problem.cluster, name):
            least = min(devices[index].memory, size)
            devices[index] = devices[index].model_copy(update={"memory": least})
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def _indices(cluster: Cluster, name: str) -> list[int]:
    """The devices of a name; none of "cpu" and "disk" where the cluster has no such device."""
    exact = [i for i, device in enumerate(cluster.devices) if device.name == name]
    gpus = [i for i, device in enumerate(cluster.devices) if device.kind != CPU]
    if exact:
        return exact
    if name.isdigit() and int(name) < len(gpus):
        return [gpus[int(name)]]
    if name in ELSEWHERE:
        return [i for i, d in enumerate(cluster.devices) if d.kind == name]
    known = ", ".join(device.name for device in cluster.devices[:8])
    raise InputError(f"max-memory {name!r}: no device is called so; devices: {known}")
