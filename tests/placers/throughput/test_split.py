"""Contiguous splits of one order, against all of them."""

from __future__ import annotations

from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest

from gnnplace.placers import SearchSpace
from gnnplace.placers.throughput.load import interval, make_flows, state_excess
from gnnplace.placers.throughput.split import MOST_BLOCKS, split
from gnnplace.placers.throughput.stages import list_device_sorts
from gnnplace.problem import Problem
from tests.placers.throughput.throughput_problems import (
    chain,
    random_problem,
    uniform_cluster,
)


def every_split(problem: Problem, order: np.ndarray) -> float:
    """The least interval of all cuts of the order, devices in every order."""
    flows, best = make_flows(SearchSpace(problem)), np.inf
    count = problem.num_devices
    for cuts in combinations_with_replacement(range(len(order) + 1), count - 1):
        stage = np.searchsorted(cuts, np.arange(len(order)), side="right")
        for devices in permutations(range(count)):
            device = np.empty(len(order), dtype=np.int32)
            device[order] = np.array(devices)[stage]
            if state_excess(flows, device) == 0:
                best = min(best, interval(flows, device))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_the_best_split_of_an_order(seed: int) -> None:
    """Equal links: the best of all cuts, whatever goes backwards or to several stages."""
    problem = random_problem(seed, uniform=True, tight=seed % 2 == 0)
    flows = make_flows(SearchSpace(problem))
    order = np.random.default_rng(seed).permutation(problem.num_units).astype(np.int32)
    found = split(flows, list_device_sorts(flows), order)
    expected = every_split(problem, order)
    if found is None:
        assert expected == np.inf
        return
    assert found.proven
    assert found.interval == pytest.approx(expected)
    assert found.relaxed <= found.interval * (1 + 1e-12)
    assert interval(flows, found.device) == found.interval


def test_nothing_is_found_above_the_upper_bound() -> None:
    """A split must be below it."""
    problem = chain([3.0, 3.0], 4.0, uniform_cluster(2))
    flows = make_flows(SearchSpace(problem))
    order = np.arange(2, dtype=np.int32)
    found = split(flows, list_device_sorts(flows), order)
    assert found is not None
    assert found.interval == 4.5  # 3 s, and one tensor of 0.5 s and 4 B at 4 B/s
    assert split(flows, list_device_sorts(flows), order, 4.4) is None


def test_large_graphs_are_cut_between_runs_of_units() -> None:
    """Then the best split is not claimed, but it is near the bound of equal shares."""
    problem = chain([1.0] * (MOST_BLOCKS + 800), 0.0, uniform_cluster(4))
    flows = make_flows(SearchSpace(problem))
    found = split(
        flows, list_device_sorts(flows), np.arange(problem.num_units, dtype=np.int32)
    )
    assert found is not None
    assert not found.proven
    assert 500.0 < found.interval < 510.0
