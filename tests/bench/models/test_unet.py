from __future__ import annotations

import torch

from gnnplace import zoo


def test_a_unet_keeps_the_size_and_its_skips_carry_what_the_bottom_forgets():
    model = zoo.build("unet", batch=2).model.eval()
    x = torch.randn(2, 3, 64, 64)
    assert model(x).shape == (2, 4, 64, 64)
    with torch.no_grad():
        for parameter in model.grow.parameters():
            parameter.zero_()
        assert not torch.allclose(model(x), model(x.flip(3)), atol=1e-4)
