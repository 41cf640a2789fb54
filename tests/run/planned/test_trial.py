"""What a plan did, judged by the user's own step: excused where that is as far off, else not."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.run.planned import trial
from gnnplace.run.planned.trial import TOLERANCE, loss_difference, run_trial
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for


@pytest.mark.parametrize(
    ("losses", "expected", "far"),
    [
        ([1.0, nan], [1.0, nan], 0.0),
        ([1.0, nan], [1.0, 2.0], inf),
        ([1.0, 2.0], [1.0, nan], inf),
        ([inf], [1.0], inf),
        ([1.5, 2.0], [1.0, 2.0], 0.5),
        ([], [], 0.0),
    ],
)
def test_losses_that_are_no_numbers_are_as_far_apart_as_can_be(losses, expected, far):
    assert loss_difference(losses, expected) == far


class Odd(nn.Module):
    """An odd function but for its biases, whose gradients over x and about -x nearly cancel."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        for layer in self.layers:
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        for layer in self.layers:
            x = 2 * torch.tanh(layer(x))
        return x


def cancelling():
    """A step whose biases eager PyTorch, too, gets wrong in half precision."""
    torch.manual_seed(1)
    x = torch.randn(4, 16)
    inputs = (torch.cat([x, -1.5 * x]), torch.zeros(8, 16))
    return Workload("Odd", Odd(), inputs, functional.mse_loss)


@pytest.mark.parametrize("precision", ["16-true", "bf16-true", "16-mixed"])
def test_half_precision_may_be_off_as_eager_pytorch_is_but_not_wrong(
    precision, monkeypatch
):
    """The plan is made once and run six times on this process: 1.5 s."""
    plan = plan_for(cancelling(), "microbatch_size=2", 1)
    plan = replace(plan, file=plan.file.model_copy(update={"precision": precision}))
    right = run_trial(plan, cancelling(), train=0, steps=0)
    if precision == "16-true":
        # Of eager PyTorch's in that type.
        assert right.first[0].relative > TOLERANCE[precision]
    assert all(d.passed for d in right.exact)
    whole = trial.gather_gradients

    def wrong(runner):
        found = whole(runner)
        return found | {
            "gradient of layers.5.bias": 1.7 * found["gradient of layers.5.bias"]
        }

    monkeypatch.setattr(trial, "gather_gradients", wrong)
    found = run_trial(plan, cancelling(), train=0, steps=0)
    assert {d.name for d in found.exact if not d.passed} == {
        "gradient of layers.5.bias"
    }


class Narrow(nn.Module):
    """A norm in single precision, by two names, takes most of a factor out."""

    def __init__(self):
        super().__init__()
        self.first, self.factor = nn.Linear(8, 8), nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = self.factor.float() * self.first(x).to(torch.float32)
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)).to(
            self.factor.dtype
        )


def test_single_precision_that_a_model_asks_for_is_no_rounding_in_double_precision():
    """DeepSeek-V4's streams: their factors' gradients were off by 1.9e-5 under `tp=2`."""
    torch.manual_seed(0)
    work = Workload(
        "Narrow", Narrow(), (torch.randn(8, 8), torch.randn(8, 8)), functional.mse_loss
    )
    found = run_trial(plan_for(work, "microbatch_size=2", 1), work, train=0, steps=0)
    assert found.first[0].relative > TOLERANCE["32-true"]
    assert all(d.relative < 1e-12 for d in found.exact)
