from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode import kernels
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.rollouts import Rollouts
from tests.policy.decode import torch_walk
from tests.policy.problems import constrained_problem, trained_like
from tests.random_problems import seeds

torch.set_num_threads(1)
POLICY = trained_like()


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_torch_and_numba_score_and_decide_alike(seed):
    problem = constrained_problem(seed)
    if not problem.unit_allowed.any(axis=1).all():
        return
    rollouts = Rollouts(SearchSpace(problem), POLICY)
    aim = rollouts.aims[seed % len(rollouts.aims)]
    walk = rollouts.graph.walk(aim.order)
    seen = rollouts.watch(aim, np.full(problem.num_units, -1, np.int32))
    features, allowed = torch.from_numpy(seen.features), torch.from_numpy(seen.allowed)
    scores = torch_walk.scored(POLICY.decoder, features, allowed)
    chosen = scores[
        torch.arange(len(seen.device)), torch.from_numpy(seen.device).long()
    ]
    assert torch.allclose(chosen, scores.max(dim=1).values, atol=1e-4, rtol=1e-4)
    by_torch = torch_walk.decode(
        POLICY.decoder,
        walk,
        rollouts.order(aim.order),
        rollouts.goal(aim),
    )
    clear = _clear_choices(scores, seen.features)
    if clear:
        assert by_torch.tolist() == rollouts.walk(aim).unit_device.tolist()


def _clear_choices(scores, features):
    """Whether no decision was a near-tie between candidates that look different."""
    best = scores.max(dim=1, keepdim=True).values
    near = scores > best - 1e-3
    for row, close in zip(features, near.numpy(), strict=True):
        if len(np.unique(row[close], axis=0)) > 1:
            return False
    return True


def test_a_score_is_the_weighted_sum():
    rng = np.random.default_rng(0)
    features, weights = rng.normal(size=(2, len(DYNAMIC))).astype(np.float32)
    score = kernels.score(weights, np.stack([weights, features]), 1)
    assert score == pytest.approx(float(features @ weights), rel=1e-4)


@pytest.mark.parametrize(("allowed", "wanted"), [("110", 0), ("011", 1), ("000", 0)])
def test_only_is_the_first_candidate_or_the_first_device(allowed, wanted):
    assert kernels.only(np.array([each == "1" for each in allowed])) == wanted


def test_aim_says_what_it_is():
    assert str(Aim("coordinate", 4, 2)) == "coordinate, 4 devices, 2 rounds"
