from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.placers.search.moves import neighbourhood, seed_kernel
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.search.moves import (
    Habit,
    back_to_best,
    search_kernel,
    start_state,
)
from tests.policy.problems import trained_like
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = trained_like()


def start_of(seed, microbatches=1):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, int(rng.integers(4, 25)), int(rng.integers(2, 5)), microbatches=microbatches
    )
    space = SearchSpace(problem)
    rollouts = Rollouts(space, POLICY)
    first = rollouts.greedy()[0]
    seed_kernel(seed % 1000)
    return space, start_state(space, first.unit_device, first.order)


def searched(seed, habit, moves, heat=0.01):
    space, s = start_of(seed, 1 + seed % 2)
    before = float(s.score[0])
    search_kernel(
        space.compiled,
        space.reversed,
        neighbourhood(space),
        habit,
        s,
        heat * before,
        moves,
    )
    return space, s, before


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_the_state_is_what_it_says_and_never_gets_worse(seed):
    space, s, before = searched(seed, Habit(0.2, 0.1), 60)
    assert s.score[0] == pytest.approx(space.score(s.device, s.order), rel=1e-9)
    assert s.score[1] == pytest.approx(space.score(s.best_device, s.best_order), rel=1e-9)
    assert s.score[1] <= before
    np.testing.assert_array_equal(space.spread(s.unit_device), s.device)
    assert sorted(s.order.tolist()) == list(range(len(s.order)))


def test_it_finds_better_placements():
    better = 0
    for seed in range(10):
        _, s, before = searched(seed, Habit(0.2, 0.1), 400)
        better += s.score[1] < before * 0.999
    assert better >= 4


def test_back_to_best_is_the_best_state():
    space, s, _ = searched(3, Habit(0.2, 0.1), 200, heat=1.0)
    back_to_best(space, s)
    assert s.score[0] == s.score[1]
    assert s.score[0] == pytest.approx(space.score(s.device, s.order), rel=1e-9)
    np.testing.assert_array_equal(space.spread(s.unit_device), s.device)
