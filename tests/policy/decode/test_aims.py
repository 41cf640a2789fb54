from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans

from gnnplace.graph.orders import COORDINATE
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import (
    ANY_LOAD,
    DECODED,
    OVERLAP,
    Aim,
    bottleneck_cuts,
    chunk_plan,
    crossing_seconds,
    list_device_limits,
    possible_aims,
)
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.train.data.random_families import RandomDraws, random_problem
from tests.random_problems import seeds


def problem_on(devices, microbatches=1):
    return random_problem(
        "layered",
        3,
        RandomDraws(
            ops=(30, 40), devices=(devices, devices), microbatches=(microbatches,)
        ),
    )


@pytest.mark.parametrize("devices", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("tight", [False, True])
def test_aims_differ_and_are_within_the_devices(devices, microbatches, tight):
    aims = possible_aims(problem_on(devices, microbatches), DECODED, tight=tight)
    assert len(set(aims)) == len(aims)
    assert any(aim.limit == 1 for aim in aims[:2])
    assert {aim.limit for aim in aims} <= set(range(1, devices + 1))
    assert devices in {aim.limit for aim in aims}
    assert all(aim.rounds == 1 or aim.order == COORDINATE for aim in aims)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_few_aims_are_of_many_numbers_of_devices(microbatches):
    aims = possible_aims(problem_on(32, microbatches), DECODED, tight=False)
    assert [aim.limit for aim in aims[:10]] == [32, 1, 32, 16, 32, 8, 32, 4, 32, 2]


def test_chunks_of_fewest_transfers_are_for_tight_memory_without_microbatches():
    def any_load(microbatches, tight):
        aims = possible_aims(problem_on(4, microbatches), DECODED, tight=tight)
        return [a.limit for a in aims if a.order == COORDINATE and a.lean == ANY_LOAD]

    assert sorted(any_load(1, True)) == [2, 4]
    assert any_load(1, False) == any_load(4, True) == []


def test_one_order_alone():
    aims = possible_aims(problem_on(4), ("topological",), tight=False)
    assert set(aims) == {Aim("topological", limit) for limit in (1, 2, 4)}


@pytest.mark.parametrize(
    ("count", "limits"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])]
)
def test_device_limits_are_powers_of_two_and_all(count, limits):
    assert list_device_limits(count) == limits


def cost(done, crossing, cuts, summed):
    ends, total, worst = [0, *cuts, len(done) - 1], 0.0, 0.0
    for c, (i, j) in enumerate(itertools.pairwise(ends)):
        own = done[j, c % done.shape[1]] - done[i, c % done.shape[1]]
        moved = crossing[i] + crossing[j] if j > i else 0.0
        total += own + moved / 2
        worst = max(worst, max(own, moved) + OVERLAP * min(own, moved))
    return total if summed else worst


@settings(max_examples=60, deadline=None)
@given(seed=seeds, summed=booleans())
def test_cuts_have_the_least_bottleneck_or_sum(seed, summed):
    rng = np.random.default_rng(seed)
    cuts, devices = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    chunks = devices * int(rng.integers(1, 3))
    done = np.concatenate(
        (np.zeros((1, devices)), rng.random((cuts - 1, devices)).cumsum(axis=0))
    )
    crossing = np.concatenate(([0.0], rng.random(max(0, cuts - 2)), [0.0]))[:cuts]
    free = (np.zeros(cuts), np.ones(devices))
    found = bottleneck_cuts(done, crossing, *free, chunks, summed)
    choices = itertools.combinations_with_replacement(range(cuts), chunks - 1)
    least = min(cost(done, crossing, choice, summed) for choice in choices)
    assert cost(done, crossing, found.tolist(), summed) <= least + 1e-9


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_crossing_counts_each_tensor_once_each_way(seed):
    problem = random_problem(
        "layered", seed % 1000, RandomDraws(ops=(20, 60), microbatches=(1,))
    )
    graph = WalkGraph(SearchSpace(problem))
    crossing = crossing_seconds(graph)
    rank = np.empty(problem.num_units, int)
    rank[graph.unit_order] = np.arange(problem.num_units)
    at, g = problem.num_units // 2, problem.graph
    crossed = 0
    for tensor in range(g.num_tensors):
        users = g.consumer[g.consumer_offset[tensor] : g.consumer_offset[tensor + 1]]
        home = rank[problem.unit_of[g.producer[tensor]]] < at
        crossed += any((rank[problem.unit_of[u]] < at) != home for u in users)
    assert (crossing[at] > 1e-12 * crossing.max()) == (crossed > 0)
    assert crossing[0] == 0
    assert abs(crossing[-1]) < 1e-9


def test_a_plan_shares_the_work_of_a_chain():
    problem = random_problem(
        "chain", 3, RandomDraws(ops=(100, 120), devices=(4, 4), microbatches=(1,))
    )
    problem = with_microbatches(problem, 4)
    graph = WalkGraph(SearchSpace(problem))
    plan = chunk_plan(graph, 4, 1)
    work = np.bincount(plan, graph.forward.unit_work, 4)
    assert work.max() < 0.5 * work.sum()
    ranks = [np.flatnonzero(plan[graph.unit_order] == d) for d in range(4)]
    assert all(np.ptp(r) == len(r) - 1 for r in ranks if len(r))


def test_thinned_cuts_still_share_the_work():
    problem = random_problem(
        "transformer",
        1,
        RandomDraws(ops=(1500, 1600), devices=(4, 4), microbatches=(1,)),
    )
    graph = WalkGraph(SearchSpace(problem))
    plan = chunk_plan(graph, 4, 2)
    assert set(plan.tolist()) <= {0, 1, 2, 3}
    assert len(plan) == problem.num_units


def test_chunks_fit_where_they_can():
    done = np.arange(9.0)[:, None].repeat(2, axis=1)
    need = np.array([0.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0])
    found = bottleneck_cuts(done, np.zeros(9), need, np.array([8.0, 8.0]), 2, False)
    assert found.tolist() == [3]  # by work alone it were 4: 9 bytes
