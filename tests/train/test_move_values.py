from __future__ import annotations

import numpy as np
import torch

from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.train import MoveValues
from gnnplace.train.move_values import FULL_GAIN, hits, try_random_moves
from tests.train.test_algorithms import SIZES, sample

torch.set_num_threads(1)


def module_of():
    torch.manual_seed(0)
    return MoveValues(moves=64, learning_rate=3e-3, **SIZES)


def test_tried_moves_have_features_units_and_changes():
    one = sample()
    tried = try_random_moves(Rollouts(one.space, module_of().policy), np.random.default_rng(0), 64)
    assert len(tried.features) == len(tried.units) == len(tried.change) > 0
    assert (tried.units[:, 0] >= 0).all()
    assert tried.units.max() < one.space.problem.num_units
    assert np.isfinite(tried.change).all()


def test_steps_on_the_same_moves_lower_the_loss():
    module, one = module_of(), sample()
    tried = [module._tried(one, module.policy)]
    module._standardise(tried[0].features)
    faster = torch.from_numpy(tried[0].change < -1e-6).float()
    optimizer = torch.optim.Adam(module.policy.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        out = module._values(tried)[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(out, faster)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_hits_tell_a_good_ranking_from_a_blind_one():
    rng = np.random.default_rng(0)
    change = np.where(rng.random(400) < 0.05, -0.01, 0.01)
    chosen, blind = hits(-change.astype(np.float32), change, rng)
    assert blind == np.mean(change < 0)
    assert chosen > 0.4  # some of 16 is faster more often than not
    assert hits(rng.normal(size=400).astype(np.float32), change, rng)[0] < 0.2
    assert hits(np.zeros(400, np.float32), np.full(400, -FULL_GAIN / 2), rng) == (0.5, 0.5)
