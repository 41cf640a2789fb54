from __future__ import annotations

import pytest

from gnnplace.sharding import best_strategy
from gnnplace.sharding.costs import sharding_problem
from gnnplace.sharding.device_counts import device_profile, fewest_devices, powers_of_two
from gnnplace.sharding.networks.registry import build_network


def test_counts():
    assert powers_of_two(1) == [1]
    assert powers_of_two(8) == [1, 2, 4, 8]
    assert powers_of_two(12) == [1, 2, 4, 8, 12]


def test_more_devices_are_not_slower_and_the_fewest_that_fit_are_found():
    network = build_network("rnnlm")
    free = device_profile(network, [1, 2, 4, 8])
    costs = [result.cost for result in free.values()]
    assert costs == sorted(costs, reverse=True)
    assert free[4].cost == best_strategy(sharding_problem(network, 4)).cost
    limit = 0.9 * free[1].memory
    limited = device_profile(network, [1, 2, 4, 8], memory_limit=limit)
    fewest = fewest_devices(limited)
    assert fewest == 2
    assert limited[1] is None
    assert all(result.memory <= limit for result in limited.values() if result)
    assert limited[8].cost >= free[8].cost
    assert fewest_devices(device_profile(network, [1], memory_limit=1.0)) is None


@pytest.mark.parametrize("devices", [3, 6])
def test_device_counts_that_are_no_power_of_two(devices):
    network = build_network("alexnet")
    whole = best_strategy(sharding_problem(network, 1)).cost
    result = best_strategy(sharding_problem(network, devices))
    assert whole / devices <= result.cost < whole
