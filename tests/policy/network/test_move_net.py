from __future__ import annotations

import numpy as np
import torch

from gnnplace.policy.network.move_net import MoveNet, value_of_move
from gnnplace.policy.search.moves import NUM_MOVE_FEATURES


def test_numba_values_equal_torch_values():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net = MoveNet(16, 32)
    net.mean.copy_(torch.from_numpy(rng.normal(size=NUM_MOVE_FEATURES)))
    net.spread.copy_(torch.from_numpy(rng.random(NUM_MOVE_FEATURES) + 0.1))
    weights = net.weights()
    context = rng.normal(size=(6, 32)).astype(np.float32)
    for units in ([2], [0, 5], [1, 2, 3]):
        features = (3 * rng.normal(size=NUM_MOVE_FEATURES)).astype(np.float32)
        with torch.no_grad():
            mean = torch.from_numpy(context[units].mean(axis=0))
            wanted = net(torch.from_numpy(features)[None], mean[None])[0, 0] - net.last.bias[0]
        got = value_of_move(
            weights, context, np.array(units, np.int32), features, np.zeros((2, 32), np.float32)
        )
        assert abs(got - float(wanted)) < 1e-3
