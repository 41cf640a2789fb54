"""Optimizers whose own step runs on the workers: bitwise what they do in a loop of PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

import gnnplace
from gnnplace.errors import UnsupportedError
from gnnplace.run.training.torch_optimizers import capture_method
from tests.run.training import optimizers
from tests.run.training.small import LOSS, batches, net


def two_groups(parameters):
    """With other numbers and another form of state."""
    fast = {"params": parameters[:2], "lr": 0.05, "momentum": 0.5}
    return optim.RMSprop([fast, {"params": parameters[2:], "centered": True}], lr=0.01)


MAKERS = {
    "SGD, Nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.01),
    "Adam, AMSGrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "Adamax": lambda p: optim.Adamax(p),
    "NAdam": lambda p: optim.NAdam(p),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01),
    "Rprop": lambda p: optim.Rprop(p),
    "ASGD": lambda p: optim.ASGD(p),
    "Adadelta": lambda p: optim.Adadelta(p),
    "RMSprop, two groups": lambda p: two_groups(list(p)),
    "Lion": lambda p: optimizers.Lion(p, lr=0.01),
}
ALWAYS = ("SGD, Nesterov", "Adafactor", "RMSprop, two groups", "NAdam", "Lion")
"""Those that are tried in every run: each keeps its state in another way."""


def plainly(model, optimizer, given):
    """PyTorch's own loop, with a schedule."""
    schedule, losses = optim.lr_scheduler.StepLR(optimizer, 2, 0.5), []
    for words, targets in given:
        optimizer.zero_grad()
        loss = LOSS(model(words), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def same(ours, theirs):
    """Whether two states of optimizers are equal to the last bit."""
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for key, state in theirs["state"].items():
        assert ours["state"][key].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(
                torch.as_tensor(ours["state"][key][name]), torch.as_tensor(value)
            )
    return True


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ALWAYS else pytest.mark.campaign)
        for n in MAKERS
    ],
)
def test_losses_parameters_and_state_are_pytorch_s_to_the_last_bit(name, problem):
    mine, theirs, given = net(), net(), batches(4)
    reference = MAKERS[name](theirs.parameters())
    expected = plainly(theirs, reference, given)
    optimizer = MAKERS[name](mine.parameters())
    losses, options = [], {"loss": LOSS, "problem": problem[0], "timeout": 30.0}
    with gnnplace.compile(mine, problem[1], optimizer, **options) as step:
        schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for batch in given:
            losses.append(float(step(batch)))
            schedule.step()
        assert same(optimizer.state_dict(), reference.state_dict())
    assert losses == expected
    for (key, ours), tensor in zip(
        mine.state_dict().items(), theirs.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, tensor), key


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (optimizers.Coupled, "depends on other parameters or on chance"),
        (optimizers.Noisy, "depends on other parameters or on chance"),
        (
            optimizers.CountsInItsGroup,
            r"changes param_groups.0.count, which is not of one",
        ),
        (optimizers.CountsInItself, r"changes self.count"),
        (optimizers.Replaces, "new memory"),
        (optim.LBFGS, "needs a closure"),
        (lambda p: optim.SparseAdam(list(p)), "does not support dense gradients"),
    ],
)
def test_a_step_that_cannot_be_taken_one_by_one_is_refused_and_draws_nothing(make, why):
    model, before = net(), torch.random.get_rng_state()
    with pytest.raises(UnsupportedError, match=why) as told:
        capture_method(make(model.parameters()), model)
    assert "\n" not in str(told.value)
    assert "optimizer=None" in str(told.value)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (optimizers.Remembers, "another form"),
        (optimizers.KeepsAnObject, "'generator' is neither"),
    ],
)
def test_a_state_that_cannot_lie_in_tensors_is_refused(make, why):
    model = nn.Linear(2, 2)
    method = capture_method(make(model.parameters()), model)
    with pytest.raises(UnsupportedError, match=why):
        method.states(model.weight, "weight")


def test_an_option_that_is_no_number_may_not_change():
    model = net()
    optimizer = optim.NAdam(model.parameters(), betas=(0.5, 0.9))
    method = capture_method(optimizer, model)
    group = optimizer.param_groups[0]
    group["betas"] = [0.6, 0.9]
    assert sorted(method.read_constants(group, 0)) == sorted(
        (0.6, 0.9, 2e-3, 1e-8, 0.0, 4e-3)
    )
    group["maximize"] = True
    with pytest.raises(UnsupportedError, match="False became True"):
        method.read_constants(group, 0)
