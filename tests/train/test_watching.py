from __future__ import annotations

import numpy as np
import torch

from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network.model import PlacementPolicy
from gnnplace.policy.refine.refining import NUM_REFINING
from gnnplace.train.watching import watch_pass
from tests.train.test_algorithms import sample

torch.set_num_threads(1)


def test_every_decision_of_a_pass_is_seen_with_its_candidates():
    torch.manual_seed(0)
    rollouts = Rollouts(sample().space, PlacementPolicy().eval())
    for seed in range(4):
        seen = watch_pass(rollouts, np.random.default_rng(seed))
        assert seen is not None
        assert seen.features.shape == (*seen.allowed.shape, NUM_REFINING)
        assert seen.allowed.any(axis=1).all()
        assert np.isfinite(seen.features).all()
