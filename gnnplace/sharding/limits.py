"""Splits under constraints: devices at most, and memory that stays free.

Layers that are split have configurations, not devices: a pin, a forbid or modules that share a
device say nothing about them and are refused.
"""

from __future__ import annotations

from dataclasses import replace

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InputError
from gnnplace.problem.cluster.headroom import read_headroom
from gnnplace.problem.constraints.constraints import (
    AUTO,
    Given,
    as_constraints,
    cluster_with_headroom,
)
from gnnplace.sharding.answers import SplitOptions

USUAL = 8  # devices, where nothing says how many


def limited_split(
    constraints: Given | None,
    options: SplitOptions | None = None,
    *,
    memory_limit: float | None = None,
) -> tuple[SplitOptions, float | None]:
    """Options of a split, and the bytes that a device has for it, under constraints.

    Args:
        constraints: ``max_devices`` and ``headroom``; ``Constraints``, a mapping or a YAML file.
        options: devices and cluster.
        memory_limit: bytes that a device has; that of the cluster's smallest device by default.

    Raises:
        InputError: pins, forbids or modules that stay together; or headroom of no known memory.
    """
    asked, options = as_constraints(constraints), options or SplitOptions()
    if asked.patterns:
        what = next(iter(asked.patterns.to_data()))
        raise InputError(
            f"{what}: a split layer is on all devices; pin, forbid and together are for place and "
            "plan"
        )
    if asked.max_memory:
        raise InputError("max_memory: a split layer is on all devices; give --memory-limit")
    if asked.max_devices is not None:
        count = options.devices
        if count is None:
            named = options.cluster is not None
            count = resolve_cluster(str(options.cluster)).num_devices if named else USUAL
        options = replace(options, devices=min(count, asked.max_devices))
    if asked.headroom is None:
        return options, memory_limit
    return options, _limit(asked.headroom, options, memory_limit)


def _limit(headroom: str, options: SplitOptions, memory_limit: float | None) -> float:
    """Bytes that are left of a device's."""
    if memory_limit is not None and headroom != AUTO:
        share, size = read_headroom(headroom)
        left = memory_limit * (1.0 - share) - size
        if left < 0:
            raise InputError(f"headroom {headroom}: is more than --memory-limit {memory_limit:g}")
        return left
    if options.cluster is None:
        raise InputError(
            f"headroom {headroom}: needs --memory-limit or --cluster, to know a device's memory"
        )
    cluster = cluster_with_headroom(resolve_cluster(options.cluster), headroom)
    left = float(cluster.memory.min())
    return left if memory_limit is None else min(left, memory_limit)
