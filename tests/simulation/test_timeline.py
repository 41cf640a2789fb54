from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.simulation import Simulator, timeline
from gnnplace.simulation.timeline import KEPT, Timeline
from tests.random_problems import random_order, random_problem, seeds


@pytest.fixture
def as_if_large(monkeypatch):
    monkeypatch.setattr(timeline, "LARGE", 1)


def tight(problem: Problem, memory: float) -> Problem:
    """The same on devices of so many bytes."""
    given = {key: getattr(problem, key) for key in Problem.__match_args__}
    devices = tuple(d.model_copy(update={"memory": memory}) for d in problem.cluster.devices)
    return Problem(**given | {"cluster": Cluster(devices, problem.cluster.links)})


def placed(problem, rng):
    device = rng.integers(0, problem.num_devices, problem.num_ops).astype(np.int32)
    return device, random_order(problem, rng)


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_kept_timelines_say_what_a_simulation_says(seed):
    rng = np.random.default_rng(seed)
    problem = tight(random_problem(rng, 20, 3, complete=bool(seed % 4)), 200.0)
    plain, keeping = Simulator(problem), Simulator(problem)
    for _ in range(3):
        device, order = placed(problem, rng)
        seconds, excess = plain.excess(device, order)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timeline, "LARGE", 1)
            assert keeping.step_time(device, order) == plain.step_time(device, order)
            assert keeping.excess(device, order)[0] == seconds
            assert keeping.excess(device, order)[1] == pytest.approx(excess)
            for cutoff in (0.5 * seconds, seconds, 2 * seconds):
                if np.isfinite(cutoff):
                    found = keeping.step_time(device, order, cutoff)
                    assert found == plain.step_time(device, order, cutoff)
            run = keeping.run(device, order)
        expected = plain.run(device, order)
        assert run.faults == expected.faults
        assert run.peak_memory.tolist() == expected.peak_memory.tolist()
        np.testing.assert_array_equal(run.finish, expected.finish)


def test_a_placement_is_simulated_once(as_if_large, monkeypatch):
    made, simulate = [], Timeline.of
    monkeypatch.setattr(Timeline, "of", lambda *of: made.append(of) or simulate(*of))
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 20, 3)
    simulator, one = Simulator(problem), placed(problem, rng)
    for _ in range(2):
        simulator.step_time(*one)
        simulator.excess(*one)
        simulator.run(*one)
    assert len(made) == 1
    one[0][:] = (one[0] + 1) % 3  # the same array, another placement
    simulator.excess(*one)
    assert len(made) == 2
    for _ in range(2 * KEPT):
        simulator.step_time(*placed(problem, rng))
    assert len(simulator.timelines.kept) == KEPT


def test_with_a_cutoff_nothing_is_kept(as_if_large):
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 20, 3)
    simulator, one = Simulator(problem), placed(problem, rng)
    assert simulator.step_time(*one, 1e9) == simulator.excess(*one, 1e9)[0]
    assert not simulator.timelines.kept


def test_nothing_is_kept_of_a_small_problem():
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 20, 3)
    simulator = Simulator(problem)
    simulator.excess(*placed(problem, rng))
    assert not simulator.timelines.kept
