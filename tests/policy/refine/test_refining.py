from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.decoder_state import DecisionRecord
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network import PlacementPolicy
from gnnplace.policy.refine import refining
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.refine.refining import NUM_REFINING, PRIOR, REFINING
from gnnplace.policy.refine.refining_state import Placed, read_previous
from tests.policy.problems import permuted_devices, trained_like
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = trained_like()


def given_placement(seed, policy=POLICY, problem=None):
    rng = np.random.default_rng(seed)
    if problem is None:
        count, devices = int(rng.integers(4, 25)), int(rng.integers(2, 5))
        problem = random_problem(rng, count, devices, microbatches=1 + seed % 3)
    space = SearchSpace(problem)
    rollouts = Rollouts(space, policy)
    decoded = rollouts.greedy()[0]
    device = space.spread(decoded.unit_device)
    return RefiningPasses(rollouts), Placed(
        device, decoded.order.copy(), np.array([decoded.score])
    )


def read(passes, placed, back):
    return read_previous(passes.ground, placed, back)


def walked(passes, previous, *, stay=0.0, forced=None, rows=0):
    g = passes.ground
    units, devices = passes.space.problem.num_units, passes.space.problem.num_devices
    features = np.zeros((rows, devices, NUM_REFINING), np.float32)
    masks, decided = np.zeros((rows, devices), np.bool_), np.zeros(rows, np.int32)
    forced = np.full(units, -1, np.int32) if forced is None else forced
    s, count = refining.walk_again(
        g.r if previous.back else g.c,
        g.units,
        previous,
        refining.Refiner(g.weights, stay, 0.0, forced),
        DecisionRecord(features, masks, decided),
    )
    return s, features[:count], masks[:count], decided[:count]


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_a_pass_that_moves_nothing_books_the_schedule_that_is_there(seed):
    passes, placed = given_placement(seed)
    links = passes.space.compiled.links
    if links.sends_cost or links.receives_cost:
        return
    previous = read(passes, placed, 0)
    s, *_ = walked(passes, previous, stay=np.inf)
    assert s.counts[2] == 0
    np.testing.assert_array_equal(s.device[passes.space.problem.unit_of], placed.device)
    work = passes.space.compiled.times[np.arange(len(placed.device)), placed.device]
    np.testing.assert_allclose(s.booked.finish - s.start, work, atol=1e-12)
    # Links are booked in the order of consumers, not of producers: near, not equal.
    assert s.booked.finish.max() >= max(np.bincount(placed.device, work)) * (1 - 1e-9)


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_what_a_pass_leaves_is_what_it_says_and_is_allowed(seed):
    passes, placed = given_placement(seed)
    space = passes.space
    for back in (0, 1):
        after = passes.tried(placed, read(passes, placed, back), 0.1)
        assert after.score[0] <= placed.score[0]
        assert after.score[0] == pytest.approx(
            space.score(after.device, after.order), rel=1e-9
        )
        units = passes.space.find_unit_devices(after.device)
        np.testing.assert_array_equal(space.spread(units), after.device)
        assert space.problem.unit_allowed[np.arange(len(units)), units].all()


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_it_takes_the_candidate_of_the_greatest_weighted_sum(seed):
    passes, placed = given_placement(seed)
    rollouts = passes.rollouts
    previous = read(passes, placed, seed % 2)
    s, features, masks, decided = walked(
        passes, previous, rows=passes.space.problem.num_units
    )
    if not len(decided):
        return
    weights = rollouts.policy.refiner.detach().numpy()
    scores = np.where(masks, features @ weights, -np.inf)
    best = scores.max(axis=1)
    chosen = scores[np.arange(len(decided)), s.device[decided]]
    assert (chosen >= best - 1e-3 * (1 + np.abs(best))).all()


def test_untrained_passes_do_not_depend_on_how_devices_are_listed():
    torch.manual_seed(0)
    policy = PlacementPolicy().eval()
    rng = np.random.default_rng(3)
    problem = random_problem(rng, 30, 3)
    passes, placed = given_placement(0, policy, problem)
    permutation = np.array([2, 0, 1])
    other, there = given_placement(0, policy, permuted_devices(problem, permutation))
    place = np.argsort(permutation)
    there = Placed(
        place[placed.device].astype(np.int32), placed.order.copy(), placed.score.copy()
    )
    mine = passes.tried(placed, read(passes, placed, 0), 1.0)
    others = other.tried(there, read(other, there, 0), 1.0)
    assert mine.score[0] == pytest.approx(others.score[0], rel=1e-9)


def test_prior_names_features():
    assert set(PRIOR) <= set(REFINING)
    assert len(set(REFINING)) == NUM_REFINING
