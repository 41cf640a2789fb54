"""Headroom: bytes of every device that a placement must leave free.

Memory that a plan does not count (the allocator's slack, working memory of libraries, another
process) is reserved by a device's ``reserve``; ``Cluster.memory`` is the rest.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gnnplace.errors import InputError
from gnnplace.files import read_size
from gnnplace.problem.cluster.cluster import Cluster
from gnnplace.problem.cluster.gpus import find_kind

SLACK = 0.112
PROCESS = 4.24e9
CONTEXT = 1e9  # Bytes, a part of PROCESS; presets leave it out of a device's memory

SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


def with_headroom(cluster: Cluster, headroom: str | float) -> Cluster:
    """Return the cluster with headroom on every device, in place of what the devices reserve.

    Args:
        cluster: the cluster whose devices keep so much free.
        headroom: a share of each device's memory, as "10%", or bytes, as 2e9, "2GB" or "512MiB".

    Raises:
        InputError: neither, or more than a device has.
    """
    share, size = read_headroom(headroom)
    devices = []
    for device in cluster.devices:
        reserve = share * device.memory + size
        if reserve > device.memory:
            raise InputError(
                f"headroom {headroom}: device {device.name!r} has {device.memory:.4g} bytes in "
                "all; give less"
            )
        devices.append(device.model_copy(update={"reserve": reserve}))
    return replace(cluster, devices=tuple(devices))


def read_headroom(headroom: str | float) -> tuple[float, float]:
    """Return a share from 0 to 1, and bytes; one of them is 0.

    Raises:
        InputError: it is neither a share nor bytes.
    """
    if isinstance(headroom, int | float):
        text = f"{headroom:.0f}"
    else:
        text = headroom.strip()
    match = SHARE.fullmatch(text)
    if match is not None and float(match[1]) < 100.0:
        return float(match[1]) / 100.0, 0.0
    try:
        return 0.0, float(read_size(text))
    except ValueError:
        raise InputError(
            f"headroom {headroom!r}: give a share below 100%, as '10%', or bytes, as '2GB', or auto"
        ) from None


def with_slack(cluster: Cluster) -> Cluster:
    """Reserve on every GPU of a cluster what the allocator, libraries and NCCL take.

    It stands in ``reserve``. A CPU needs none. The part of ``PROCESS`` that is the CUDA context is
    in the presets' memory already, and a GPU alone has no groups: it keeps the slack alone.

    Raises:
        InputError: a GPU that is too small for it.
    """
    if cluster.num_devices > 1:
        group = PROCESS - CONTEXT
    else:
        group = 0.0
    devices = []
    for device in cluster.devices:
        usable = (device.memory - group) / (1.0 + SLACK)
        if find_kind(device.kind) == "cpu":
            usable = device.memory - device.reserve
        elif usable <= 0:
            raise InputError(
                f"headroom auto: device {device.name!r} has {device.memory:.4g} bytes, and NCCL "
                f"and CUDA take {group:.3g} of them"
            )
        devices.append(device.model_copy(update={"reserve": device.memory - usable}))
    return replace(cluster, devices=tuple(devices))
