"""The constraint programme for throughput: optimum, bound, parts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.throughput_programme import ThroughputModel, model_size
from gnnplace.placers import SearchSpace
from gnnplace.placers.throughput.load import interval, make_flows, state_excess
from tests.placers.throughput.throughput_problems import (
    brute_force,
    chain,
    random_problem,
    uniform_cluster,
)


@pytest.mark.parametrize("seed", range(12))
def test_optimum_and_bound_are_brute_force(seed: int) -> None:
    """With links of all kinds, or tight memory."""
    problem = random_problem(seed, uniform=seed % 2 == 0, tight=True)
    space = SearchSpace(problem)
    flows, best = make_flows(space), brute_force(problem)[0]
    start = space.allow(np.zeros(problem.num_units, dtype=np.int32))
    model = ThroughputModel(space, flows, start, 1e4)
    device, bound, status = model.solve(np.random.default_rng(0), 10.0)
    if best == np.inf:
        assert status == "INFEASIBLE"
        return
    assert status == "OPTIMAL"
    assert device is not None
    assert state_excess(flows, device) == 0
    assert interval(flows, device) == pytest.approx(best)
    assert best * (1 - 1e-4) <= bound <= best * (1 + 1e-9)


def test_units_that_are_not_free_stay() -> None:
    """A part of the model moves no one else."""
    problem = chain([4.0, 1.0, 1.0, 4.0], 0.0, uniform_cluster(2))
    space = SearchSpace(problem)
    flows = make_flows(space)
    start = np.array([0, 0, 0, 0], dtype=np.int32)
    free = np.array([False, False, True, True])
    model = ThroughputModel(space, flows, start, interval(flows, start), free)
    device, _, status = model.solve(np.random.default_rng(0), 5.0)
    assert status == "OPTIMAL"
    assert device is not None
    assert device.tolist() == [0, 0, 1, 1]
    assert model_size(flows) == 4 * 2 + 3 * 2
