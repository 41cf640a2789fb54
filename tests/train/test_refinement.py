from __future__ import annotations

import numpy as np
import torch

from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.refine.refining import NUM_REFINING
from gnnplace.train import Refinement
from gnnplace.train.refinement import try_decisions
from tests.train.test_algorithms import SIZES, sample

torch.set_num_threads(1)


def module_of(**options):
    torch.manual_seed(0)
    return Refinement(decisions=8, learning_rate=3e-3, **options, **SIZES)


def test_tried_decisions_have_a_regret_for_every_candidate():
    one = sample()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tried = try_decisions(Rollouts(one.space, module_of().policy), rng, 8, 0.05)
        assert tried is not None
        assert tried.features.shape[2] == NUM_REFINING
        assert 0 < len(tried.unit) <= 8
        np.testing.assert_array_equal(np.isfinite(tried.regret), tried.allowed)
        assert (np.nanmin(tried.regret, axis=1) == 0.0).all()
        assert np.nanmax(tried.regret) <= 0.05 + 1e-6


def test_steps_on_the_same_decisions_lower_the_loss():
    module, one = module_of(), sample()
    tried = try_decisions(Rollouts(one.space, module.policy), np.random.default_rng(1), 32, 0.05)
    assert tried is not None
    optimizer = torch.optim.Adam(module.policy.parameters(), 3e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = module._loss(tried, module.policy.states([tried.graph])).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
