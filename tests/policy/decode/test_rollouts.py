from __future__ import annotations

import time

import numpy as np
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import MOST_AIMS, Rollouts
from gnnplace.train.data.random_families import RandomDraws
from gnnplace.train.data.random_families import random_problem as family_problem
from tests.policy.problems import trained_like
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = trained_like()


def rollouts_of(family="inception", seed=3, **shape):
    return Rollouts(
        SearchSpace(family_problem(family, seed, RandomDraws(**shape))), POLICY
    )


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_booked_orders_agree_with_the_graph(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(1, 25)), int(rng.integers(1, 4)))
    rollouts = Rollouts(SearchSpace(problem), POLICY)
    source, target, _ = problem.graph.edges
    for aim in rollouts.aims:
        order = rollouts.walk(aim).order
        if order is not None:
            position = np.argsort(order)
            assert sorted(order.tolist()) == list(range(problem.num_ops))
            assert (position[source] < position[target]).all()


def test_following_decisions_sees_what_making_them_saw():
    rollouts = rollouts_of()
    for aim in rollouts.aims:
        free = rollouts.watch(
            aim, np.full(rollouts.space.problem.num_units, -1, np.int32)
        )
        followed = rollouts.watch(aim, rollouts.walk(aim).unit_device)
        np.testing.assert_array_equal(free.features, followed.features)
        np.testing.assert_array_equal(free.device, followed.device)


def test_forced_units_keep_their_devices():
    rollouts = rollouts_of()
    forced = np.full(rollouts.space.problem.num_units, -1, np.int32)
    forced[::3] = 1
    for aim in rollouts.aims:
        seen = rollouts.watch(aim, forced)
        assert (seen.device[seen.unit % 3 == 0] == 1).all()


def test_score_is_what_the_simulator_says():
    rollouts = rollouts_of()
    best = rollouts.greedy()[0]
    device = rollouts.space.spread(best.unit_device)
    assert best.score == rollouts.space.score(device, best.order)


def test_first_choices_come_best_first_with_one_device_among_them():
    scores = [decoded.score for decoded in rollouts_of().greedy()]
    assert scores == sorted(scores)
    assert any(decoded.aim.limit == 1 for decoded in rollouts_of().greedy())


def test_micro_batches_are_also_decoded_in_rounds():
    seeds_with = (s for s in range(50) if family_problem("chain", s).microbatches > 1)
    rollouts = rollouts_of("chain", next(seeds_with))
    assert {aim.rounds for aim in rollouts.aims} == {1, 2, 3}
    aim = next(aim for aim in rollouts.aims if aim.rounds == 3)
    priority = rollouts.round_priority(3)
    assert len(np.unique(priority)) == rollouts.space.problem.num_ops
    assert np.isfinite(rollouts.decode(aim).score)


def test_noise_draws_other_placements():
    rollouts, rng = rollouts_of(), np.random.default_rng(0)
    aim = rollouts.aims[-1]
    drawn = {
        rollouts.walk(aim, noise=rollouts.noise(rng, 2.0)).unit_device.tobytes()
        for _ in "abc"
    }
    assert len(drawn) > 1


def test_after_the_deadline_one_aim_is_decoded():
    rollouts = rollouts_of()
    assert len(rollouts.greedy(time.perf_counter() - 1.0)) == 1


def test_a_long_budget_tries_all_aims_and_none_the_first_ones():
    rollouts = rollouts_of()
    assert {one.aim for one in rollouts.greedy(time.perf_counter() + 1e4)} == set(
        rollouts.aims
    )
    assert {one.aim for one in rollouts.greedy()} == set(rollouts.aims[:MOST_AIMS])


def test_a_large_problem_that_is_late_keeps_the_decoders_own_order(monkeypatch):
    rollouts = rollouts_of("layered", 1, ops=(60, 80), microbatches=(1,))
    aim = next(aim for aim in rollouts.aims if rollouts.walk(aim).order is not None)
    walked = rollouts.walk(aim)
    in_time = rollouts.finish(aim, walked)
    monkeypatch.setattr("gnnplace.policy.decode.rollouts.LARGE", 10)
    late = rollouts.finish(aim, walked, deadline=0.0)
    assert (late.order == walked.order).all()
    device = rollouts.space.spread(late.unit_device)
    assert late.score == rollouts.space.score(device, late.order) >= in_time.score
