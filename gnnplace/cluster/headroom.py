"""Headroom: bytes of every device that a placement must leave free.

What a plan does not see (the allocator's slack, libraries' work space, another process) needs room
of its own. It stands in ``reserve`` of a device; ``Cluster.memory`` is what is left beside it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gnnplace.cluster.cluster import Cluster
from gnnplace.errors import InputError
from gnnplace.files import read_size

SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


def with_headroom(cluster: Cluster, headroom: str | float) -> Cluster:
    """The cluster with headroom on every device, instead of what its devices reserve themselves.

    Args:
        cluster: where.
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
    """A share from 0 to 1, and bytes; one of them is 0.

    Raises:
        InputError: it is neither a share nor bytes.
    """
    text = f"{headroom:.0f}" if isinstance(headroom, int | float) else headroom.strip()
    found = SHARE.fullmatch(text)
    if found is not None and float(found[1]) < 100.0:
        return float(found[1]) / 100.0, 0.0
    try:
        return 0.0, float(read_size(text))
    except ValueError:
        raise InputError(
            f"headroom {headroom!r}: give a share below 100%, as '10%', or bytes, as '2GB', or auto"
        ) from None
