"""Random numbers by cause: the same masks wherever they are drawn."""

import torch
from torch import nn
from torch.nn import functional

from gnnplace.plans.run.draws import drawn_alike, draws, seed_of


def masks(step, example, attention=True):
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    heads = torch.ones(1, 2, 8, 4)
    with torch.random.fork_rng(devices=[]), drawn_alike(1, step, example, attention=attention):
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)
        return mixed, model[0](torch.ones(64)), model[1](torch.ones(64))


def test_masks_depend_on_step_and_micro_batch_and_on_nothing_else():
    first = masks(0, 0)
    torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(first, masks(0, 0), strict=True))
    for other in (masks(1, 0), masks(0, 1)):
        assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[1], first[2])


def test_attention_drops_nothing_where_it_is_told_not_to():
    assert torch.equal(masks(0, 0, attention=False)[0], torch.ones(1, 2, 8, 4))


def test_seeds_are_all_different():
    seeds = {seed_of(b, s, m, k) for b in range(3) for s in range(5) for m in range(5)
             for k in range(20)}  # fmt: skip
    assert len(seeds) == 3 * 5 * 5 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_what_draws_is_known_by_its_name():
    x = torch.ones(2)
    assert draws(functional.dropout, (x,), {})
    assert draws(torch.rand_like, (x,), {})
    assert not draws(functional.scaled_dot_product_attention, (x, x, x), {"dropout_p": 0.0})
    assert draws(functional.scaled_dot_product_attention, (x, x, x, None, 0.1), {})
    assert not draws(functional.layer_norm, (x,), {})
    assert not draws(functional.normalize, (x,), {})
