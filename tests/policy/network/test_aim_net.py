from __future__ import annotations

import numpy as np
import torch

from gnnplace.policy.decode.aims import ORDERS, Aim
from gnnplace.policy.network.aim_net import AIM_FEATURES, AimNet, aim_features
from gnnplace.policy.network.features import GLOBAL

AIMS = [Aim(order, limit) for limit in (4, 2, 1) for order in ORDERS]


def test_features_tell_aims_apart():
    rows = aim_features([*AIMS, Aim("upward-rank", 4, lean=1), Aim("coordinate", 4, 3)], 4)
    assert rows.shape == (len(AIMS) + 2, len(AIM_FEATURES))
    assert len(np.unique(rows, axis=0)) == len(rows)
    one = dict(zip(AIM_FEATURES, aim_features([Aim("coordinate", 2, 3, 1)], 8)[0], strict=True))
    assert one["order coordinate"] == one["3 rounds"] == one["lean, whatever the load"] == 1
    assert one["devices aimed at, of all"] == 0.25


def test_untrained_it_keeps_the_order():
    torch.manual_seed(0)
    known = np.random.default_rng(0).normal(size=len(GLOBAL)).astype(np.float32)
    assert AimNet().ranked(known, AIMS, 4) == AIMS


def test_it_learns_an_aim_that_depends_on_the_problem():
    torch.manual_seed(0)
    net, rng = AimNet(), np.random.default_rng(1)
    problems = torch.from_numpy(rng.normal(size=(256, len(GLOBAL))).astype(np.float32))
    right = torch.where(problems[:, 0] > 0, 0, 5)
    aims = torch.from_numpy(aim_features(AIMS, 4))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        values = net(problems, aims.expand(256, -1, -1))
        loss = torch.nn.functional.cross_entropy(values, right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for sign, best in ((2.0, 0), (-2.0, 5)):
        known = np.zeros(len(GLOBAL), np.float32)
        known[0] = sign
        assert net.ranked(known, AIMS, 4)[0] == AIMS[best]
