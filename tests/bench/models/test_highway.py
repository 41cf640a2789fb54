from __future__ import annotations

import torch

from gnnplace.bench.models.highway import Highway


def test_a_step_is_what_the_formula_says():
    torch.manual_seed(0)
    cell, x, state = Highway(4, 2), torch.randn(2, 4), torch.randn(2, 4)
    y = cell.state[0](state) + cell.word(x)
    gate = torch.sigmoid(y[:, 4:])
    first = torch.tanh(y[:, :4]) * gate + state * (1 - gate)
    y = cell.state[1](first)
    gate = torch.sigmoid(y[:, 4:])
    torch.testing.assert_close(
        cell.step(x, state), torch.tanh(y[:, :4]) * gate + first * (1 - gate)
    )
