from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.refine.passes import STARTS, RefiningPasses, starts
from gnnplace.policy.refine.refining_state import Placed
from tests.policy.problems import trained_like
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = trained_like()


def decoded(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(4, 30)), int(rng.integers(2, 5)))
    rollouts = Rollouts(SearchSpace(problem), POLICY)
    return rollouts, rollouts.greedy()


@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_passes_never_make_a_placement_worse(seed):
    rollouts, ranked = decoded(seed)
    passes = RefiningPasses(rollouts)
    best = passes.best(ranked)
    assert best.score <= ranked[0].score
    assert best.score <= min(
        passes.refine_rounds(d, rounds=1).score for d in starts(ranked, STARTS)
    )
    device = rollouts.space.spread(best.unit_device)
    assert np.isclose(rollouts.space.score(device, best.order), best.score)


def test_after_the_deadline_the_first_decode_stays():
    rollouts, ranked = decoded(1)
    assert RefiningPasses(rollouts).best(ranked, time.perf_counter() - 1.0) is ranked[0]


def test_passes_are_the_same_each_time():
    (one, first), (two, second) = decoded(5), decoded(5)
    a, b = RefiningPasses(one).best(first), RefiningPasses(two).best(second)
    assert a.score == b.score
    np.testing.assert_array_equal(a.unit_device, b.unit_device)


def test_a_placement_that_cannot_run_is_left_alone():
    rollouts, ranked = decoded(3)
    first = ranked[0]
    device = rollouts.space.spread(first.unit_device)
    placed = Placed(device, first.order, np.array([np.inf]))
    assert RefiningPasses(rollouts).improved(placed) is placed


def test_starts_differ_and_one_may_not_fit():
    _, ranked = decoded(2)
    first = ranked[0]
    others = [
        replace(first, score=first.score * k, fits=k != 2) for k in (1, 1, 2, 3, 4)
    ]
    assert [d.score / first.score for d in starts(others, 3)] == [1, 3, 2]
    assert len(starts(others[:1], 3)) == 1
