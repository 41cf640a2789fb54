"""Optimizers on parts: those that go element by element pass, others are refused in one line."""

import pytest
import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.run.planned.steps import refuse_joint_step


class Own(torch.optim.Optimizer):
    """A step in plain PyTorch, of one parameter or of all."""

    def __init__(self, parameters, lr=0.0):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            self.update([p for p in group["params"] if p.grad is not None], group["lr"])


class Lion(Own):
    """Signs of a momentum (Chen et al., 2023, arXiv 2302.06675)."""

    def update(self, parameters, rate):
        for p in parameters:
            kept = self.state[p].setdefault("momentum", torch.zeros_like(p))
            p.sub_(rate * kept.lerp(p.grad, 0.1).sign())
            kept.lerp_(p.grad, 0.01)


class Lamb(Own):
    """Updates as long as the weights (You et al., 2020, arXiv 1904.00962), without moments."""

    def update(self, parameters, rate):
        for p in parameters:
            p.sub_(p.grad * (rate * p.norm() / p.grad.norm()))


class Clipping(Own):
    """Clips by the norm of all gradients."""

    def update(self, parameters, rate):
        torch.nn.utils.clip_grad_norm_(parameters, 0.1)
        for p in parameters:
            p.sub_(rate * p.grad)


class Raising(Own):
    def update(self, parameters, rate):
        raise ValueError("no")


def weights():
    return [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "kind",
    [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Rprop,
     torch.optim.NAdam, torch.optim.Adagrad, Lion],
)  # fmt: skip
def test_steps_that_go_element_by_element_pass(kind, cut):
    optimizer = kind(weights(), lr=0.0 if kind in (torch.optim.SGD, Lion) else 1e-8)
    refuse_joint_step(optimizer, cut)
    assert all(p.grad is None for p in optimizer.param_groups[0]["params"])


def test_fused_and_foreach_steps_and_several_groups_pass():
    for option in ("fused", "foreach"):
        one, two = weights()
        groups = [
            {"params": [one], "weight_decay": 0.3},
            {"params": [two], "betas": (0.5, 0.9)},
        ]
        refuse_joint_step(torch.optim.AdamW(groups, **{option: True}), True)


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Muon, Lamb])
def test_steps_that_look_at_matrices_are_refused_on_parts_of_them_alone(kind):
    optimizer = kind(weights(), lr=1e-8)
    refuse_joint_step(optimizer, False)
    with pytest.raises(
        InputError, match=f"optimizer {kind.__name__}: its step is another one"
    ):
        refuse_joint_step(optimizer, True)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("kind", "why"),
    [(torch.optim.LBFGS, "calls the loss again"), (Clipping, "another one|reads all parameters"),
     (Raising, "raises ValueError when it is tried")],
)  # fmt: skip
def test_steps_that_need_all_parameters_are_refused(kind, why, cut):
    with pytest.raises(InputError, match=why) as told:
        refuse_joint_step(kind(weights()), cut)
    assert "\n" not in str(told.value)
