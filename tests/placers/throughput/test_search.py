"""Annealing for throughput: loads that follow moves, memory, the optimum of small problems."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gnnplace.placers import SearchSpace
from gnnplace.placers.search.space import NO_BUDGET
from gnnplace.placers.throughput.load import interval, loads, make_flows, state_excess
from gnnplace.placers.throughput.search import (
    count_readers,
    fresh_loads,
    local_search,
    move,
)
from tests.placers.throughput.throughput_problems import (
    brute_force,
    chain,
    random_problem,
    uniform_cluster,
)


@pytest.mark.parametrize("seed", range(10))
def test_loads_follow_moves(seed: int) -> None:
    """After a hundred moves they are what they are from scratch."""
    problem = random_problem(seed, uniform=True)
    flows, rng = make_flows(SearchSpace(problem)), np.random.default_rng(seed)
    device = np.zeros(problem.num_units, dtype=np.int32)
    readers = count_readers(flows, device)
    load, resident = fresh_loads(flows, device)
    for _ in range(100):
        unit, target = (
            rng.integers(problem.num_units),
            rng.integers(problem.num_devices),
        )
        move(flows, unit, target, device, readers, load, resident)
    assert load == pytest.approx(loads(flows, device))
    assert resident == pytest.approx(np.bincount(device, flows.state, len(load)))
    assert (readers == count_readers(flows, device)).all()


def test_it_finds_the_optimum_of_small_problems() -> None:
    """Of nine in ten, from one device, where memory leaves one."""
    solved = []
    for seed in range(20):
        problem = random_problem(seed, uniform=True, tight=True)
        space, best = SearchSpace(problem), brute_force(problem)[0]
        if best == np.inf:
            continue
        flows, rng = make_flows(space), np.random.default_rng(0)
        start = space.allow(np.zeros(problem.num_units, dtype=np.int32))
        found = local_search(flows, space.unit_order, start, rng, NO_BUDGET)
        fits = state_excess(flows, found) == 0
        assert not fits or interval(flows, found) >= best * (1 - 1e-9)
        solved.append(fits and interval(flows, found) <= best * (1 + 1e-9))
    assert len(solved) > 10
    assert np.mean(solved) >= 0.9


@pytest.mark.timed
def test_it_ends_at_the_deadline() -> None:
    """And the start is returned where nothing is better."""
    problem = chain([1.0] * 40, 1e6, uniform_cluster(3))
    space = SearchSpace(problem)
    start = np.zeros(40, dtype=np.int32)
    rng = np.random.default_rng(0)
    local_search(make_flows(space), space.unit_order, start, rng, NO_BUDGET)  # compiled
    begin = time.perf_counter()
    found = local_search(make_flows(space), space.unit_order, start, rng, begin + 0.2)
    assert time.perf_counter() - begin < 2.0
    assert (found == found[0]).all()
