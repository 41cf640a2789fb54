from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.placers import Found, SearchSpace, contract
from gnnplace.placers.constructions import best_construction
from gnnplace.placers.search.annealing import (
    COLDEST,
    HOTTEST,
    Annealer,
    anneal,
    hottest,
)
from gnnplace.placers.search.moves import (
    find_window,
    move_units,
    neighbourhood,
    passes_none,
    renew_order,
    shift,
    undo_move,
)
from gnnplace.placers.search.repair import repair
from gnnplace.placers.search.space import NO_BUDGET
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.problem.placement import sequence_from_order
from tests.random_problems import random_problem, seeds


def drawn(seed: int, ops: int = 20) -> tuple[SearchSpace, np.random.Generator]:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, ops, 3, microbatches=int(rng.integers(1, 3)))
    return SearchSpace(problem), rng


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_a_shift_stays_topological_and_is_free_only_where_no_sequence_changes(seed):
    space, rng = drawn(seed)
    n = space.problem.num_ops
    device = space.spread(rng.integers(3, size=space.problem.num_units))
    order = space.problem.graph.topological_order.astype(np.int32).copy()
    position = np.empty(n, np.int32)
    position[order] = np.arange(n)
    source, target, _ = space.problem.graph.edges
    for op in rng.integers(n, size=20):
        low, high = find_window(
            space.compiled, neighbourhood(space), order, position, op
        )
        if high <= low:
            continue
        goal = int(rng.integers(low, high + 1))
        before = sequence_from_order(device, order, 3)
        free = passes_none(device, order, position[op], goal)
        shift(order, position, position[op], goal)
        after = sequence_from_order(device, order, 3)
        same = all((a == b).all() for a, b in zip(before, after, strict=True))
        assert free == same
        assert (position[source] < position[target]).all()
        assert (order[position] == np.arange(n)).all()


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_a_renewed_order_runs_and_keeps_the_order_among_ready_ops(seed):
    space, rng = drawn(seed)
    device = space.spread(rng.integers(3, size=space.problem.num_units))
    order = renew_order(space.compiled, device, space.problem.graph.topological_order)
    assert sorted(order.tolist()) == list(range(space.problem.num_ops))
    assert np.isfinite(space.simulator.step_time(device, order))


def test_independent_ops_keep_their_order_when_it_is_renewed():
    space = SearchSpace(contract.branches())
    device = np.zeros(space.problem.num_ops, dtype=np.int32)
    for seed in range(5):
        priority = (
            np.random.default_rng(seed).permutation(space.problem.num_ops).astype(float)
        )
        order = space.sequence(device, [priority])[1]
        assert renew_order(space.compiled, device, order).tolist() == order.tolist()


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_a_move_of_units_is_taken_back(seed):
    space, rng = drawn(seed)
    h = neighbourhood(space)
    unit_device = rng.integers(3, size=space.problem.num_units).astype(np.int32)
    device = space.spread(unit_device)
    before = unit_device.copy(), device.copy()
    units = rng.integers(len(unit_device), size=6).astype(np.int32)
    former = np.empty(8, np.int32)
    changed = move_units(h, unit_device, device, units, 1, former)
    assert (device == space.spread(unit_device)).all()
    assert changed == len({u for u in units.tolist() if before[0][u] != 1})
    undo_move(h, unit_device, device, units, former)
    assert (unit_device == before[0]).all()
    assert (device == before[1]).all()


def test_the_first_temperature_rises_with_the_moves_an_op_gets():
    assert hottest(0.001) == COLDEST
    assert hottest(1e9) == HOTTEST
    assert COLDEST < hottest(1.0) < HOTTEST


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_nothing_gets_worse_and_what_fits_goes_on_fitting(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 20, 3, constrained=True, microbatches=2)
    space = SearchSpace(problem)
    start = best_construction(space, rng)
    found = anneal(space, start, rng, NO_BUDGET)
    before = space.score(start.device, start.order)
    assert space.score(found.device, found.order) <= before * (1 + 1e-12)
    if space.simulator.run(start.device, start.order).feasible:
        assert space.simulator.run(found.device, found.order).feasible


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_is_never_worse_than_a_start_that_fits(seed):
    """The best state lacks bytes, and its repair is longer than the start or does not fit."""
    chain = contract.training_chain(num_layers=8, num_devices=2, seed=seed)
    ample = SearchSpace(with_microbatches(chain, 2))
    start = best_construction(ample, np.random.default_rng(0))
    before = ample.simulator.run(start.device, start.order)
    cluster = ample.problem.cluster
    devices = tuple(
        one.model_copy(update={"memory": float(need)})
        for one, need in zip(cluster.devices, before.peak_memory, strict=True)
    )
    space = SearchSpace(replace(ample.problem, cluster=Cluster(devices, cluster.links)))
    annealer = Annealer(space, start, np.random.default_rng(0))
    swapped = Found((1 - start.device).astype(np.int32), start.order)
    repaired = space.simulator.run(*repair(space, swapped.device, swapped.order))
    assert not (repaired.feasible and repaired.step_time <= before.step_time)
    annealer.offer(swapped, 0.5 * annealer.score)
    answer = annealer.answer("offered")
    after = space.simulator.run(answer.device, answer.order)
    assert after.feasible
    assert after.step_time <= before.step_time * (1 + 1e-12)


def test_annealing_leaves_the_lockstep_of_micro_batches():
    """From one device, whose order knows no pipeline, it finds one."""
    chain = contract.training_chain(num_layers=12, num_devices=2, seed=1)
    space = SearchSpace(with_microbatches(chain, 4))
    single = placer("single").search(space, np.random.default_rng(0), NO_BUDGET)
    turned = Found(single.device, space.problem.graph.topological_order)
    found = anneal(space, turned, np.random.default_rng(0), NO_BUDGET)
    assert space.score(found.device, found.order) < 0.75 * space.score(*_pair(single))


def _pair(found: Found) -> tuple[np.ndarray, np.ndarray]:
    return found.device, found.order


@pytest.mark.timed
@pytest.mark.parametrize("budget", [0.03, 0.1])
def test_small_budgets_are_kept(budget):
    problem = with_microbatches(contract.training_chain(num_layers=20), 2)
    space = SearchSpace(problem)
    anneal(
        space,
        best_construction(space, np.random.default_rng(0)),
        np.random.default_rng(0),
        0,
    )
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        placer("annealing").search(space, np.random.default_rng(0), begin + budget)
        took.append(time.perf_counter() - begin)
    assert budget <= min(took) < 1.1 * budget + 0.01
