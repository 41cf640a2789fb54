"""What can be told before any search: units without a device, ops that fit no memory."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InfeasibleError
from gnnplace.placers import SearchSpace
from gnnplace.placers.search.space import NO_BUDGET, count_looks, is_expired, read_clock
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.simulation.list_scheduling import list_schedule
from tests.random_problems import random_problem, seeds


def with_memory(problem: Problem, memory: float) -> Problem:
    devices = tuple(
        d.model_copy(update={"memory": memory}) for d in problem.cluster.devices
    )
    return replace(problem, cluster=Cluster(devices, problem.cluster.links))


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_no_placement_has_less_than_an_ops_working_set_on_its_device(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(1, 20)), 3, constrained=True)
    space = SearchSpace(problem)
    units = [int(rng.choice(np.flatnonzero(row))) for row in problem.unit_allowed]
    device = np.array(units, np.int32)[problem.unit_of]
    order = rng.permutation(problem.num_ops)
    order = order[np.argsort(problem.graph.position[order])].astype(np.int32)
    peak = space.simulator.run(device, order).peak_memory
    takes_time = problem.times[np.arange(problem.num_ops), device] > 0
    own = space.working_set[takes_time]
    assert (own <= peak[device[takes_time]] * (1 + 1e-9) + 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_what_is_refused_for_its_memory_can_be_placed_by_nobody(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 12, 2)
    space = SearchSpace(problem)
    tight = with_memory(problem, float(rng.uniform(0.3, 1.1) * space.working_set.max()))
    if not refused(tight):
        return
    simulator = SearchSpace(tight).simulator
    order = problem.graph.topological_order.astype(np.int32)
    for _ in range(20):
        assert not simulator.run(
            rng.integers(0, 2, 12).astype(np.int32), order
        ).feasible


def refused(problem: Problem) -> bool:
    try:
        SearchSpace(problem).check_possible()
    except InfeasibleError:
        return True
    return False


def test_an_op_that_fits_nowhere_is_named():
    problem = random_problem(np.random.default_rng(4), 15, 3)
    space = SearchSpace(problem)
    slow = np.where((problem.times > 0).all(axis=1), space.working_set, 0.0)
    name = problem.graph.names[int(slow.argmax())]
    with pytest.raises(
        InfeasibleError, match=rf"op '{name}': its state, inputs and outputs"
    ):
        placer("heft").place(with_memory(problem, 0.99 * float(slow.max())))


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_the_best_sequence_is_that_of_all_priorities(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(1, 20)), int(rng.integers(1, 4)))
    space = SearchSpace(problem)
    device = space.spread(
        space.allow(
            rng.integers(problem.num_devices, size=problem.num_units).astype(np.int32)
        )
    )
    orders = [list_schedule(space.compiled, device, each) for each in space.priorities]
    scores = [space.score(device, order) for order in (*orders, space.turn_order)]
    score, order = space.sequence(device)
    assert score == pytest.approx(min(scores), rel=1e-8)
    assert score == space.score(device, order)


def test_without_a_budget_nothing_expires():
    assert not is_expired(NO_BUDGET)


def test_a_budget_expires_when_its_time_has_come():
    at = time.perf_counter()
    assert is_expired(at)
    assert not is_expired(at + 60)


def test_the_clock_counts_how_often_it_is_asked():
    with count_looks():
        assert [read_clock(), read_clock(), read_clock()] == [1.0, 2.0, 3.0]
        assert not is_expired(NO_BUDGET)
        assert is_expired(4.0)
        with count_looks():
            assert read_clock() == 1.0
    assert read_clock() != 5.0
