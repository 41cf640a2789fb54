"""Tracing keeps custom backward passes and leaves no fake tensors on the model."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from gnnplace.tracing.guards.attributes import (
    Attributes,
    custom_gradients,
    restore_attributes,
)
from gnnplace.tracing.models import capture
from tests.tracing import models
from tests.tracing.oracle import eager
from tests.tracing.straight_run import run_program


class Double(torch.autograd.Function):
    """Passes its input on and doubles the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * grad * (x > 0)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Double.apply(self.norm(self.a(x))).pow(2)


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.cache = self.a(x)
        return self.cache


def test_a_backward_of_the_model_s_own_is_kept() -> None:
    model, inputs = Custom(), (models.batch(),)
    result, truth = run_program(capture(model, inputs)), eager(model, inputs)
    assert torch.equal(result.loss, truth.loss)
    for name, gradient in truth.gradients.items():
        assert torch.equal(result.gradients[name], gradient), name
    assert torch.equal(
        result.state["buffer.norm.running_mean"], truth.buffers["norm.running_mean"]
    )


def test_what_makes_gradients_of_its_own_is_found_behind_any_name() -> None:
    x, apply, layer = torch.ones(2, requires_grad=True), Double.apply, nn.Linear(2, 2)
    y = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
    assert custom_gradients([y, x]) == []
    layer.register_full_backward_hook(lambda module, given, made: None)
    assert custom_gradients({"a": apply(y)}) == ["autograd function Double"]
    assert custom_gradients(layer(apply(y))) == [
        "hook of a module",
        "autograd function Double",
    ]


def test_attributes_are_restored() -> None:
    model = Keeping()
    capture(model, (models.batch(),))
    assert model.calls == 0
    assert not hasattr(model, "cache")
    model(models.batch())
    kept = model.cache
    with restore_attributes(model):
        model(models.batch())
    assert model.cache is kept


class Making(OrderedDict[str, type[nn.Module]]):
    """Its values are made when they are read, as those of transformers' `ACT2FN` are."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


MADE = Making(gelu=nn.GELU, relu=nn.ReLU)


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.made = nn.Linear(8, 8), Making(tanh=nn.Tanh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = MADE["gelu"](self.made["tanh"](self.a(x)))
        return made


def test_a_dict_that_makes_its_values_is_read_as_it_is_kept() -> None:
    model, inputs = Reading(), (models.batch(),)
    result, truth = run_program(capture(model, inputs)), eager(model, inputs)
    assert torch.equal(result.loss, truth.loss)


def test_what_an_object_makes_of_any_name_is_not_asked() -> None:
    """Such as what stands for a trainer, which refuses all that is read of it."""

    class Refuses:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    module = nn.Linear(2, 2)
    module.trainer = Refuses()
    with Attributes(module).restored():
        module.seen = 1
    assert not hasattr(module, "seen")
