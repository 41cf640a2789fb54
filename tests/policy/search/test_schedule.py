from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.search.schedule import SOFT, empty_schedule, read_schedule
from tests.random_problems import random_problem, seeds


def schedule_of(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 25)), int(rng.integers(1, 4)))
    space = SearchSpace(problem)
    device = space.spread(rng.integers(problem.num_devices, size=problem.num_units))
    order = space.simulator.complete(device)
    s = empty_schedule(space.compiled, problem.num_units)
    read_schedule(space.compiled, device, order, s)
    return space, device, order, s


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_times_and_loads_are_the_simulators(seed):
    space, device, order, s = schedule_of(seed)
    run = space.simulator.run(device, order)
    assert s.seconds[0] == pytest.approx(max(run.step_time, 1e-300))
    np.testing.assert_allclose(s.finish, run.finish)
    times = space.problem.times[np.arange(len(device)), device]
    np.testing.assert_allclose(s.load, np.bincount(device, times, len(s.load)))
    seconds = s.busy.sum(axis=1) * s.seconds[0] / s.busy.shape[1]
    np.testing.assert_allclose(seconds, s.load, atol=1e-9 + 1e-9 * s.seconds[0])


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
@example(seed=423513)  # all ops take no time
def test_what_ends_last_is_critical_and_slack_is_not(seed):
    _, _, _, s = schedule_of(seed)
    assert s.weight[int(np.argmax(s.finish))] == pytest.approx(1.0)
    assert (s.weight <= 1.0).all()
    assert (s.critical <= s.busy + 1e-9).all()


def test_an_op_beside_the_path_has_the_slack_it_has():
    from gnnplace.cluster import Cluster, Device, Link
    from gnnplace.graph import ComputationGraph
    from gnnplace.problem import build_problem

    graph = ComputationGraph.from_tensors(["long", "short", "join"], [(0, 1, [2]), (1, 1, [2])])
    devices = tuple(Device(name=f"d{i}", kind="k", memory=1e9) for i in range(2))
    links = tuple(
        Link(source=a, target=b, latency=0.0, bandwidth=1e12)
        for a, b in (("d0", "d1"), ("d1", "d0"))
    )
    problem = build_problem("y", graph, Cluster(devices, links), {"k": np.array([10.0, 9.9, 1.0])})
    space = SearchSpace(problem)
    s = empty_schedule(space.compiled, 3)
    read_schedule(space.compiled, np.array([0, 1, 0], np.int32), np.arange(3, dtype=np.int32), s)
    assert s.weight[0] == pytest.approx(1.0)
    assert s.weight[1] == pytest.approx(np.exp(-0.1 / 11 / SOFT), rel=1e-3)
