"""Numbers of a cut batch: made unequal on purpose, they show a wrong cut."""

from __future__ import annotations

import copy
import re
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import fx, nn

from gnnplace.errors import OtherLossError
from gnnplace.tracing.batch import numbers
from gnnplace.tracing.models import capture_workload
from gnnplace.tracing.program.cut_batch import CutBatch
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload
from tests.tracing import losses


def graphs(
    work: str | Workload, count: int = 2
) -> tuple[fx.GraphModule, fx.GraphModule, Any, CutBatch]:
    """Of the whole batch and of an unrepaired share, with the inputs and how they are cut."""
    if isinstance(work, str):
        work = {**losses.RIGHT, **losses.REPAIRED, **_exceptions()}[work]()
    whole = StepModule(work.model, work.loss, work.inputs)
    share = StepModule(
        work.model, work.loss, tuple(x.chunk(count)[0] for x in work.inputs)
    )
    made = [
        torch.export.export(step, step.inputs(), strict=False).module(
            check_guards=False
        )
        for step in (whole, share)
    ]
    assert all(isinstance(module, fx.GraphModule) for module in made)
    batch = CutBatch(count, (0,) * len(work.inputs))
    return made[0], made[1], work.inputs, batch  # type: ignore[return-value]


def _exceptions() -> Any:
    return {name: make for name, (_, make) in losses.EXCEPTIONS.items()}


def test_a_mean_agrees_and_a_sum_does_not() -> None:
    assert numbers.differences(*graphs("mean")) == ""
    assert "the loss is" in (numbers.differences(*graphs("no loss")) or "")


def test_a_loss_that_is_off_in_its_last_digits_says_by_how_much() -> None:
    x, target = (torch.ones(4, n, dtype=torch.float64) for n in (4, 3))
    layer = nn.Linear(4, 3, dtype=torch.float64)
    whole, share, inputs, batch = graphs(
        Workload("", layer, (x, target), nn.functional.mse_loss)
    )
    share = copy.deepcopy(share)
    with torch.no_grad():
        next(share.parameters()).mul_(1 + 1e-7)
    found = numbers.differences(whole, share, inputs, batch, uneven=False)
    assert re.fullmatch(
        r"the loss is .* instead of .*, off by \S*e-\d+ of it", found or ""
    )


def test_equal_masks_would_show_nothing() -> None:
    given = graphs("equal masks")
    assert numbers.differences(*given, uneven=False) == ""
    assert "the loss is" in (numbers.differences(*given) or "")


def test_batch_norm_is_frozen_and_dropout_is_off() -> None:
    """Both agree with a batch that is cut then, and leave the model's running mean alone."""
    for name in losses.EXCEPTIONS:
        assert numbers.differences(*graphs(name)) == ""


def test_masks_and_padding_are_made_unequal() -> None:
    whole, _, inputs, batch = graphs("equal masks")
    mask = numbers.unequal(whole, inputs, batch)[2]
    assert 0 < int(mask.sum()) < len(mask)
    assert torch.equal(numbers.unequal(whole, inputs, batch)[0], inputs[0])
    whole, _, inputs, batch = graphs("padding")
    tags = numbers.unequal(whole, inputs, batch)[1]
    ignored = (tags == -100).sum(1)
    assert ignored[:4].sum() > ignored[4:].sum()
    assert ((tags == inputs[1]) | (tags == -100)).all()


def test_a_batch_that_needs_too_much_memory_is_not_run(monkeypatch: Any) -> None:
    monkeypatch.setattr(numbers, "ROOM", 0.0)
    assert numbers.differences(*graphs("mean")) is None


class Averages(nn.Module):
    """Two norms with running averages, one of them in a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(6)
        self.second = nn.InstanceNorm1d(2, track_running_stats=True)
        self.last = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.first(x).to(x.dtype)
        hidden = self.second(hidden.unflatten(1, (2, 3))).flatten(1)
        return self.last(hidden).renorm(2, 0, 1e9).mean()  # no rule: numbers decide


def test_the_users_running_averages_stay_as_they_are() -> None:
    torch.manual_seed(0)
    model, x = Averages(), torch.randn(8, 6)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with suppress(OtherLossError):
        capture_workload(Workload("averages", model, (x,)), 2)
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
    )


class Half(nn.Module):
    """A layer in a region of autocast, the same view of its output as of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.layers(x)
        return hidden.float().view_as(x).square().mean()


@pytest.mark.parametrize("count", [2, 8])
def test_a_region_of_autocast_rounds_as_its_type_does(count: int) -> None:
    torch.manual_seed(0)
    program = capture_workload(Workload("half", Half(), (torch.randn(16, 16),)), count)
    assert program.batch is not None
    assert program.batch.notes == ()
    assert (
        numbers.find_coarsest_tolerance([torch.float32, torch.bfloat16, torch.int64])
        == 5e-2
    )
