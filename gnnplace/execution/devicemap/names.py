"""What accelerate calls the devices of a cluster: numbers of GPUs, or "cpu".

A GPU's number is that in its name where all GPUs have one (``gpu:1``, ``cuda:1``), else its place
among the cluster's GPUs. A device map is one process's, which has one CPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gnnplace.errors import InputError
from gnnplace.problem.cluster import Device

CPU = "cpu"
Name = int | str
NUMBER = re.compile(r"(?:gpu|cuda):(\d+)")


def accelerate_names(devices: Sequence[Device], used: Sequence[int]) -> dict[int, Name]:
    """The name of each used device, by its position.

    Args:
        devices: of the cluster.
        used: positions of those that the map is to name, in ascending order.

    Raises:
        InputError: several CPUs, or GPUs beside a CPU, which accelerate would keep weights on but
            run nothing on.
    """
    hosts = [i for i in used if devices[i].kind == CPU]
    if hosts and len(used) > 1:
        named = ", ".join(devices[i].name for i in used)
        told = "runs nothing on the CPU beside GPUs" if len(hosts) < len(used) else "knows one CPU"
        raise InputError(
            f"device map: modules are on {named}, and accelerate {told}; place on GPUs alone "
            f"(--forbid '*={devices[hosts[0]].name}'), or on one device (--max-devices 1)"
        )
    if hosts:
        return {hosts[0]: CPU}
    gpus = [i for i, device in enumerate(devices) if device.kind != CPU]
    numbers = [NUMBER.fullmatch(devices[i].name) for i in gpus]
    if all(numbers) and len({m[1] for m in numbers if m}) == len(gpus):
        return {i: int(m[1]) for i, m in zip(gpus, numbers, strict=True) if m and i in used}
    return {i: place for place, i in enumerate(gpus) if i in used}
