from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode import kernels
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network.features import DYNAMIC
from gnnplace.policy.network.model import PlacementPolicy
from tests.policy.network import torch_walk
from tests.policy.problems import trained_like
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = trained_like()


def problem_of(seed):
    rng = np.random.default_rng(seed)
    return random_problem(
        rng,
        int(rng.integers(1, 30)),
        int(rng.integers(1, 5)),
        constrained=True,
        microbatches=int(rng.integers(1, 3)),
    )


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_torch_and_numba_score_and_decide_alike(seed):
    problem = problem_of(seed)
    if not problem.unit_allowed.any(axis=1).all():
        return
    rollouts = Rollouts(SearchSpace(problem), POLICY)
    aim = rollouts.aims[seed % len(rollouts.aims)]
    walk = rollouts.graph.walk(aim.order)
    context = rollouts.contexts[int(walk is not rollouts.graph.forward)]
    seen = rollouts.watch(aim, np.full(problem.num_units, -1, np.int32))
    scores = POLICY.decoder(
        torch.from_numpy(context[seen.step]),
        torch.from_numpy(seen.features),
        torch.from_numpy(seen.allowed),
    )
    chosen = scores[torch.arange(len(seen.chosen)), torch.from_numpy(seen.chosen).long()]
    assert torch.allclose(chosen, scores.max(dim=1).values, atol=1e-4, rtol=1e-4)
    by_torch = torch_walk.decode(
        POLICY.decoder,
        walk,
        torch.from_numpy(context),
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


def test_numba_scores_equal_torch_scores():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(7, 5, len(DYNAMIC))).astype(np.float32)
    allowed = rng.random((7, 5)) < 0.7
    allowed[:, 0] = True
    context = rng.normal(size=(7, 16)).astype(np.float32)
    with torch.no_grad():
        wanted = POLICY.decoder(
            torch.from_numpy(context), torch.from_numpy(features), torch.from_numpy(allowed)
        ).numpy()
    hidden, out = np.zeros((12, 16), np.float32), np.zeros(5, np.float32)
    for s in range(7):
        kernels.score(POLICY.decoder.weights(), context[s], features[s], allowed[s], hidden, out)
        np.testing.assert_allclose(out, wanted[s], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_devices", [2, 3, 5, 8, 13, 33, 64])
def test_candidates_that_look_the_same_score_the_same(num_devices):
    rng = np.random.default_rng(1)
    features = np.tile(rng.normal(size=len(DYNAMIC)), (num_devices, 1)).astype(np.float32)
    hidden = np.zeros((2 * num_devices + 2, 16), np.float32)
    out, allowed = np.zeros(num_devices, np.float32), np.ones(num_devices, np.bool_)
    context = rng.normal(size=16).astype(np.float32)
    kernels.score(POLICY.decoder.weights(), context, features, allowed, hidden, out)
    assert len(np.unique(out)) == 1


def test_scores_do_not_depend_on_the_order_of_candidates():
    features, context = torch.randn(4, 6, len(DYNAMIC)), torch.randn(4, 16)
    allowed = torch.rand(4, 6) < 0.8
    permutation = torch.randperm(6)
    scores = POLICY.decoder(context, features, allowed)
    other = POLICY.decoder(context, features[:, permutation], allowed[:, permutation])
    assert torch.allclose(scores[:, permutation], other, atol=1e-5)


def test_aim_says_what_it_is():
    assert str(Aim("coordinate", 4, 2)) == "coordinate, 4 devices, 2 rounds"


def test_a_linear_decoder_needs_no_encoder_and_takes_the_best(monkeypatch):
    torch.manual_seed(0)
    policy = PlacementPolicy(hidden=8, layers=1, decoder_hidden=8).eval()
    monkeypatch.setattr(policy, "embed", lambda graph: pytest.fail("the encoder was asked"))
    rollouts = Rollouts(SearchSpace(random_problem(np.random.default_rng(2), 20, 3)), policy)
    assert rollouts.weights.first.shape[1] == 0
    for aim in rollouts.aims:
        seen = rollouts.watch(aim, rollouts.walk(aim).unit_device)
        context = torch.zeros(len(seen.step), 8)
        with torch.no_grad():
            scores = policy.decoder(
                context, torch.from_numpy(seen.features), torch.from_numpy(seen.allowed)
            ).numpy()
        best = scores.max(axis=1)
        chosen = scores[np.arange(len(scores)), seen.chosen]
        assert (chosen >= best - 1e-4 * (1 + np.abs(best))).all()
