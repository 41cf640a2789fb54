"""Branches on a tensor that only raise are recorded as not taken; all others are refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gnnplace.errors import CaptureError
from gnnplace.plans.segments.chains import capture_layers
from gnnplace.sharding.captured.split import layer_graph
from gnnplace.tracing.models import capture
from gnnplace.zoo import Workload
from tests.tracing.oracle import eager
from tests.tracing.straight_run import run_program

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
LIMIT = 3.0
Condition = Callable[[nn.Module, torch.Tensor], None]


class Checked(nn.Linear):
    """A linear layer that looks at its input first."""

    def __init__(self, condition: Condition) -> None:
        super().__init__(4, 4)
        self.condition = condition
        self.seen = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.condition(self, x)
        return super().forward(x)


def an_if(_: nn.Module, x: torch.Tensor) -> None:
    if x.max() >= LIMIT:
        message = f"too large: {x.max().item()}"
        raise ValueError(message)


def an_assert(_: nn.Module, x: torch.Tensor) -> None:
    assert (x < LIMIT).all(), "too large"


def a_denial(_: nn.Module, x: torch.Tensor) -> None:
    if not (x < LIMIT).all().item():
        raise ValueError


def a_check(_: nn.Module, x: torch.Tensor) -> None:
    torch._check((x < LIMIT).all().item())
    torch._check(x.max().item() < LIMIT, lambda: "too large")


def parts_of_a_condition(layer: nn.Module, x: torch.Tensor) -> None:
    if layer.training and (
        x.max() > LIMIT or (x.min() < -LIMIT and not (x == 0).any())
    ):
        raise ValueError
    assert x.min() > -LIMIT or x.max() < LIMIT


def a_chain(_: nn.Module, x: torch.Tensor) -> None:
    assert -LIMIT < x.min() <= x.max().item() < LIMIT
    if -LIMIT > x.min() > -2 * LIMIT:
        raise ValueError


def functions(_: nn.Module, x: torch.Tensor) -> None:
    if any(row.max() > LIMIT for row in x) or not bool((x < LIMIT).any()):
        raise ValueError
    if not torch.equal(x, x) or LIMIT in x:
        raise ValueError
    if math.isnan(x.sum().item()) or not math.isfinite(x.sum()):
        raise ValueError


def a_name(_: nn.Module, x: torch.Tensor) -> None:
    largest = x.max().item()
    if largest > LIMIT or largest < -LIMIT:
        raise ValueError(f"{largest}")


def an_else(layer: nn.Module, x: torch.Tensor) -> None:
    if (x < LIMIT).all():
        layer.train()
    elif x.min() < 0:
        raise ValueError
    else:
        raise TypeError


def another_function(layer: nn.Module, x: torch.Tensor) -> None:
    try:
        for row in x:
            an_if(layer, row)
    except ValueError as error:
        raise ValueError("a row") from error


def a_distribution(_: nn.Module, x: torch.Tensor) -> None:
    torch.distributions.Normal(x, x.exp())


ASSERTIONS = (
    an_if,
    an_assert,
    a_denial,
    a_check,
    parts_of_a_condition,
    a_chain,
    functions,
    a_name,
    an_else,
    another_function,
    a_distribution,
)


@pytest.mark.parametrize("condition", ASSERTIONS)
def test_an_assertion_is_recorded_as_not_taken_and_said(condition: Condition) -> None:
    model = Checked(condition)
    program = capture(model, X)
    result, truth = run_program(program), eager(model, (X,))
    assert torch.equal(result.loss, truth.loss)
    targets = [op.target for op in capture(nn.Linear(4, 4), X).ops]
    assert [op.target for op in program.ops] == targets
    assert any("the check of a tensor at" in notice for notice in program.notices)


@pytest.mark.parametrize("condition", ASSERTIONS)
def test_inference_has_the_same_assertions(condition: Condition) -> None:
    program = capture(Checked(condition), X, forward_only=True)
    assert program.ops == capture(nn.Linear(4, 4), X, forward_only=True).ops


@pytest.mark.parametrize("condition", ASSERTIONS)
def test_layers_have_the_same_assertions(condition: Condition) -> None:
    with pytest.warns(UserWarning, match="the check of a tensor at"):
        calls = layer_graph(Checked(condition), (X,), None, "checked").calls
    assert calls.calls[-1].kind == "linear"
    workload = Workload("checked", Checked(condition), (X,))
    assert capture_layers(workload, "32-true").calls.notices == calls.notices


def test_a_check_of_targets_in_the_loss_is_recorded() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert target.max() < 4, "no such class"
        return nn.functional.cross_entropy(output, target)

    model, target = nn.Linear(4, 4), torch.tensor([0, 1, 3])
    truth = loss(model(X), target).detach()
    assert torch.equal(run_program(capture(model, (X, target), loss=loss)).loss, truth)


def returns(_: nn.Module, x: torch.Tensor) -> None:
    if x.max() > LIMIT:
        return
    torch.relu(x)


def sets(layer: nn.Module, x: torch.Tensor) -> None:
    if x.max() > LIMIT:
        layer.train()
    else:
        layer.eval()


def returns_or_raises(layer: nn.Module, x: torch.Tensor) -> None:
    if x.max() > LIMIT:
        if layer.training:
            return
        raise ValueError


def caught(layer: nn.Module, x: torch.Tensor) -> None:
    try:
        an_if(layer, x)
    except ValueError:
        layer.eval()


def suppressed(layer: nn.Module, x: torch.Tensor) -> None:
    import contextlib

    with contextlib.suppress(ValueError):
        an_if(layer, x)


def a_name_that_is_kept(layer: nn.Module, x: torch.Tensor) -> None:
    largest = x.max().item()
    if largest > LIMIT:
        raise ValueError
    layer.seen = largest


def a_choice_within(_: nn.Module, x: torch.Tensor) -> None:
    if (1 if x.max() > 0 else 2) > LIMIT:
        raise ValueError


def a_loop(_: nn.Module, x: torch.Tensor) -> None:
    while x.max() > LIMIT:
        raise ValueError


def a_number_of_python(_: nn.Module, x: torch.Tensor) -> None:
    if int(x.max()) > LIMIT:
        raise ValueError


def both_raise(_: nn.Module, x: torch.Tensor) -> None:
    if x.max() > LIMIT:
        raise ValueError
    raise TypeError


@pytest.mark.parametrize(
    "condition",
    [
        returns,
        sets,
        returns_or_raises,
        caught,
        suppressed,
        a_name_that_is_kept,
        a_choice_within,
        a_loop,
        a_number_of_python,
        both_raise,
    ],
)
def test_a_branch_that_does_something_else_is_refused(condition: Condition) -> None:
    model = Checked(condition)
    for forward_only in (False, True):
        with pytest.raises(CaptureError, match=r"numbers of a tensor"):
            capture(model, X, forward_only=forward_only)
    with (
        pytest.raises(CaptureError, match=r"numbers of a tensor"),
        warnings.catch_warnings(),
    ):
        layer_graph(model, (X,), None, "checked")


def test_code_without_a_source_has_no_assertions() -> None:
    names: dict[str, Condition] = {}
    exec("def unseen(_, x):\n    if x.max() > 3:\n        raise ValueError\n", names)
    with pytest.raises(CaptureError, match="numbers of a tensor"):
        capture(Checked(names["unseen"]), X)
