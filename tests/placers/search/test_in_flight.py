from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.search.in_flight import (
    WORTH,
    InFlightSpace,
    fewer_in_flight,
    with_most_in_flight,
)
from gnnplace.problem import BACKWARD, FORWARD
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import Simulator
from gnnplace.simulation.compiled import compute_longest_path
from gnnplace.simulation.list_scheduling import list_schedule
from tests.random_problems import random_problem, seeds


class One(NamedTuple):
    """A start."""

    score: float
    unit_device: np.ndarray
    order: np.ndarray


def chain(microbatches=4, memory=1e9):
    """Six layers on two devices."""
    whole = contract.training_chain(num_layers=6, num_devices=2, memory=memory)
    return with_microbatches(whole, microbatches)


def most_started(problem, order):
    """Most micro-batches of a unit whose forward ops have begun, with backward ops to come."""
    waiting = np.bincount(problem.unit_of, problem.phase == BACKWARD).astype(int)
    left = {}
    most = 0
    for op in order.tolist():
        key = int(problem.unit_of[op]), int(problem.microbatch[op])
        if problem.phase[op] == FORWARD:
            left.setdefault(key, waiting[key[0]] // problem.microbatches)
        elif problem.phase[op] == BACKWARD and key in left:
            left[key] -= 1
        alive = [unit for (unit, _), count in left.items() if count > 0]
        most = max([most, *(alive.count(unit) for unit in alive)])
    return most


@pytest.mark.parametrize("most", [1, 2, 3])
def test_orders_keep_no_more_in_flight_than_asked(most):
    problem = chain()
    held = InFlightSpace(problem, most)
    device = held.spread(np.arange(problem.num_units) % 2)
    forward_first = np.where(problem.phase == FORWARD, 1.0, 0.0)
    free = list_schedule(SearchSpace(problem).lean[0], device, forward_first)
    order = list_schedule(held.lean[0], device, forward_first)
    assert most_started(problem, free) == problem.microbatches
    assert most_started(problem, order) == most


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_orders_are_orders_of_the_problem_as_it_is(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3, constrained=True, microbatches=3)
    held = InFlightSpace(problem, int(rng.integers(1, 3)))
    device = held.spread(
        np.where(problem.unit_allowed, rng.random((1, 3)), -1).argmax(axis=1)
    )
    order = list_schedule(held.lean[0], device, rng.random(problem.num_ops))
    assert sorted(order.tolist()) == list(range(problem.num_ops))
    place = np.argsort(order)
    source, target, _ = problem.graph.edges
    assert (place[source] < place[target]).all()
    assert Simulator(problem).step_time(device, order) == held.score(device, order)


def test_nothing_is_held_back_where_all_may_be_in_flight():
    problem = chain()
    assert (
        with_most_in_flight(problem, 4).graph.num_tensors == problem.graph.num_tensors
    )


def test_fewer_in_flight_need_less_memory():
    problem = chain(8)
    graph = problem.graph
    kept = graph.size * np.where(problem.phase[graph.producer] == FORWARD, 100.0, 1.0)
    problem = replace(problem, graph=replace(graph, size=kept))
    device = SearchSpace(problem).spread(
        np.arange(problem.num_units) * 2 // problem.num_units
    )
    forward_first = np.where(problem.phase == FORWARD, 1.0, 0.0)
    peaks = [
        Simulator(problem)
        .run(
            device,
            list_schedule(InFlightSpace(problem, most).lean[0], device, forward_first),
        )
        .peak_memory.max()
        for most in (1, 2, 4, 8)
    ]
    assert peaks == sorted(peaks)
    assert peaks[0] < 0.9 * peaks[-1]


@pytest.mark.parametrize(("gain", "most"), [(1.0, None), (0.99 * WORTH, 2)])
def test_fewer_are_in_flight_only_where_that_is_worth_it(gain, most):
    problem = chain()
    state = problem.state.sum() + problem.graph.size.max()
    devices = tuple(
        d.model_copy(update={"memory": state}) for d in problem.cluster.devices
    )
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    whole = SearchSpace(problem)
    on_one = np.zeros(problem.num_units, dtype=np.int32)
    seconds = whole.simulator.step_time(whole.spread(on_one), whole.turn_order)
    # What does not fit has a penalty, which is not what fewer in flight are compared with.
    scores = {None: 1e6, 1: 2 * seconds, 2: gain * seconds, 3: seconds}

    def ranked(space):
        return [One(scores[getattr(space, "most", None)], on_one, whole.turn_order)]

    space, starts = fewer_in_flight(whole, ranked)
    assert getattr(space, "most", None) == most
    assert starts[0].score == scores[most]


def test_ample_memory_asks_for_no_other_starts():
    asked = []
    space = SearchSpace(chain(memory=1e15))
    fewer_in_flight(
        space, lambda one: asked.append(one) or [One(1.0, one.work[0], one.work[0])]
    )
    assert asked == [space]


def test_where_the_best_start_fits_nothing_is_held_back():
    asked = []
    problem = chain()
    state = problem.state.sum() + problem.graph.size.max()
    devices = tuple(
        d.model_copy(update={"memory": state}) for d in problem.cluster.devices
    )
    space = SearchSpace(
        replace(problem, cluster=replace(problem.cluster, devices=devices))
    )
    assert space.memory_matters
    on_one = np.zeros(problem.num_units, dtype=np.int32)
    seconds = space.simulator.step_time(space.spread(on_one), space.turn_order)

    def ranked(one):
        asked.append(getattr(one, "most", None))
        return [One(score, on_one, space.turn_order)]

    score = seconds
    fewer_in_flight(space, ranked)
    assert asked == [None]
    # What does not fit has others tried, but not those whose edges alone take too long.
    score = 2 * seconds
    fewer_in_flight(space, ranked)
    limits = [
        compute_longest_path(with_most_in_flight(problem, most)) for most in (1, 2, 3)
    ]
    assert asked[2:] == [k + 1 for k in range(3) if limits[k] < WORTH * seconds]


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_forward_ops_wait_for_all_backward_ops_of_their_unit(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3, constrained=True, microbatches=3)
    most = int(rng.integers(1, 3))
    source, target, _ = with_most_in_flight(problem, most).graph.edges
    old = set(zip(*(ends.tolist() for ends in problem.graph.edges[:2]), strict=True))
    unit, share, phase = problem.unit_of, problem.microbatch, problem.phase
    wanted = {
        (i, j)
        for i in np.flatnonzero(phase == BACKWARD).tolist()
        for j in np.flatnonzero((unit == unit[i]) & (share == share[i] + most)).tolist()
        if phase[j] == FORWARD
    }
    assert set(zip(source.tolist(), target.tolist(), strict=True)) == old | wanted
