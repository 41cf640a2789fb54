from __future__ import annotations

import torch

from gnnplace import zoo


def test_towers_meet_in_products_of_all_pairs():
    model = zoo.build("recommender", tables=3).model
    dense, ids = torch.randn(5, 13), torch.randint(2000, (5, 3, 4))
    made = [model.bottom(dense)]
    made += [model.towers[i](model.tables[i](ids[:, i]).sum(1)) for i in range(3)]
    pairs = [(made[i] * made[j]).sum(1) for i in range(4) for j in range(i + 1, 4)]
    expected = model.top(torch.cat([made[0], torch.stack(pairs, 1)], 1))[:, 0]
    assert torch.allclose(model(dense, ids), expected, atol=1e-5)
