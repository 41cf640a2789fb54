"""What stages cost: against loads of whole splits."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.placers import SearchSpace
from gnnplace.placers.throughput.load import loads, make_flows
from gnnplace.placers.throughput.stages import (
    add_unit,
    list_device_sorts,
    segment_costs,
    sum_own_load,
    true_largest,
)
from gnnplace.problem.cluster import make_preset
from tests.placers.throughput.throughput_problems import (
    chain,
    random_problem,
    uniform_cluster,
)


def test_devices_that_look_alike_are_of_one_sort() -> None:
    """Two kinds of three devices; links are equal."""
    problem = chain([1.0, 2.0], 4.0, uniform_cluster(3, kinds=("fast", "slow")))
    problem.time["slow"][:] = 9.0
    sorts = list_device_sorts(make_flows(SearchSpace(problem)))
    assert sorts.of.tolist() == [0, 1, 0]
    assert sorts.counts.tolist() == [2, 1]
    assert sorts.equal
    assert not list_device_sorts(make_flows(SearchSpace(random_problem(1)))).equal


@pytest.mark.parametrize("seed", range(10))
def test_a_unit_added_and_taken_out_leaves_nothing(seed: int) -> None:
    """Changes of what crosses the border cancel, in any order."""
    flows = make_flows(SearchSpace(random_problem(seed)))
    made = np.zeros(len(flows.producer), dtype=np.bool_)
    read = np.zeros(len(flows.producer), dtype=np.int32)
    rng = np.random.default_rng(seed)
    units = rng.permutation(len(flows.state))
    changes = [add_unit(flows, u, 1, made, read) for u in units]
    changes += [add_unit(flows, u, -1, made, read) for u in rng.permutation(units)]
    assert np.abs(np.sum(changes, axis=0)).max() < 1e-9
    assert not made.any()
    assert not read.any()


@pytest.mark.parametrize("seed", range(15))
def test_costs_of_segments_are_loads_of_two_stages(seed: int) -> None:
    """Where all else is on one device, sends count once and the cost is the true load."""
    problem = random_problem(seed, uniform=True)
    flows = make_flows(SearchSpace(problem))
    sorts, order = (
        list_device_sorts(flows),
        np.arange(problem.num_units, dtype=np.int32),
    )
    cost = segment_costs(flows, sorts, order, order, np.inf)
    for i in range(problem.num_units):
        for j in range(i + 1, problem.num_units + 1):
            device = np.ones(problem.num_units, dtype=np.int32)
            device[i:j] = 0
            assert cost[0, i, j] == pytest.approx(loads(flows, device)[0])


@pytest.mark.parametrize("seed", range(15))
def test_stages_of_whole_splits_have_the_true_loads(seed: int) -> None:
    """``true_largest`` and, where nothing is earlier, ``sum_own_load``."""
    problem = random_problem(seed, uniform=True)
    flows = make_flows(SearchSpace(problem))
    sorts, rng = list_device_sorts(flows), np.random.default_rng(seed)
    stage = rng.integers(0, problem.num_devices, problem.num_units).astype(np.int32)
    expected = loads(flows, stage)
    assert true_largest(flows, sorts, stage, sorts.of) == pytest.approx(expected.max())
    last = problem.num_devices - 1
    own = sum_own_load(flows, sorts, stage, last, sorts.of[last])
    assert own == pytest.approx(expected[last])


def test_the_dearest_links_of_devices() -> None:
    """Two servers: NVLink at best, the network at worst."""
    flows = make_flows(
        SearchSpace(chain([1.0] * 3, 4.0, make_preset("two-tier-v100-2x4")))
    )
    assert list_device_sorts(flows).pace.tolist() == [1 / 150e9]
    assert list_device_sorts(flows, dear=True).pace.tolist() == [1 / 10e9]
    assert list_device_sorts(flows, dear=True).latency.tolist() == [10e-6]
