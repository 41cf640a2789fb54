"""The other two questions of TensorOpt (Cai et al., 2020, arXiv 2004.10856) about a network: how
time falls with the number of devices, and how few devices are enough for a memory limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnplace.errors import InfeasibleError
from gnnplace.sharding.configurations import ANY, Space
from gnnplace.sharding.costs import Machine, sharding_problem
from gnnplace.sharding.layers import Network
from gnnplace.sharding.solver.frontier import cheapest_within
from gnnplace.sharding.solver.search import ShardingResult, best_strategy


def powers_of_two(devices: int) -> list[int]:
    """1, 2, 4 … up to ``devices``, and ``devices`` itself."""
    counts = [1 << k for k in range(devices.bit_length()) if 1 << k <= devices]
    return counts if counts[-1] == devices else [*counts, devices]


def device_profile(
    network: Network,
    counts: Sequence[int],
    machine: Machine | None = None,
    *,
    memory_limit: float | None = None,
    space: Space = ANY,
) -> dict[int, ShardingResult | None]:
    """The best strategy for each number of devices; None where nothing fits.

    Args:
        network: layers.
        counts: numbers of devices.
        machine: speeds.
        memory_limit: bytes of a device.
        space: which splits are allowed.
    """
    found: dict[int, ShardingResult | None] = {}
    for count in counts:
        problem = sharding_problem(network, count, machine, space=space)
        try:
            found[count] = (
                best_strategy(problem)
                if memory_limit is None
                else cheapest_within(problem, memory_limit)
            )
        except InfeasibleError:
            found[count] = None
    return found


def fewest_devices(profile: dict[int, ShardingResult | None]) -> int | None:
    """The least number of devices of a profile on which a strategy fits; None if on none."""
    return min((count for count, result in profile.items() if result is not None), default=None)
