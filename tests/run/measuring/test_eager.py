"""Eager steps are timed on a copy, with the threads asked for, and leave no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.run.measuring.eager import eager_step_time, torch_optimizer
from gnnplace.run.measuring.running import eager_times
from gnnplace.tracing.program.optimizers import adamw, sgd


def test_the_model_and_the_threads_stay_as_they_were():
    model, threads = nn.Linear(4, 2), torch.get_num_threads()
    before = model.weight.detach().clone()
    assert eager_step_time(model, torch.ones(3, 4), optimizer=sgd(lr=1.0), steps=2) > 0
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    assert torch.get_num_threads() == threads


def test_one_and_all_cores_stand_side_by_side():
    times = eager_times("mlp?batch=3&width=4")
    assert 1 in times
    assert all(seconds > 0 for seconds in times.values())


def test_the_loss_may_take_targets():
    model = nn.Linear(4, 2)
    inputs = (torch.ones(3, 4), torch.zeros(3, dtype=torch.long))
    assert eager_step_time(model, inputs, loss=nn.functional.cross_entropy, steps=1) > 0


@pytest.mark.parametrize(
    ("method", "kind", "values"),
    [
        (
            sgd(0.3, 0.9, 0.1),
            torch.optim.SGD,
            {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1},
        ),
        (sgd(0.3), torch.optim.SGD, {"lr": 0.3, "momentum": 0, "weight_decay": 0}),
        (adamw(0.2, (0.5, 0.6)), torch.optim.AdamW, {"lr": 0.2, "betas": (0.5, 0.6)}),
    ],
)
def test_the_optimizer_is_torchs_with_the_same_figures(method, kind, values):
    made = torch_optimizer(method, nn.Linear(2, 2))
    assert type(made) is kind
    assert {key: made.defaults[key] for key in values} == values


def test_no_threads_or_steps_are_refused():
    with pytest.raises(InputError, match="threads=0"):
        eager_step_time(nn.Linear(2, 2), torch.ones(1, 2), threads=0)
