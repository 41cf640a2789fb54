"""The message names the innermost module and the last line of the user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.errors import CaptureError
from gnnplace.tracing import capture
from gnnplace.tracing.blame import blame
from gnnplace.tracing.step import StepModule
from tests.tracing import models


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("first line\nsecond line")


def message(model: nn.Module) -> str:
    step = StepModule(model, None, (models.batch(),))
    try:
        step(*step.inputs())
    except Exception as error:
        return blame(error, step)
    raise AssertionError("it did not fail")


def test_inner_module_and_line() -> None:
    text = message(nn.Sequential(nn.Linear(8, 8), Broken()))
    assert "in module '1' (Broken)" in text
    assert "test_blame.py:" in text
    assert text.endswith("ValueError: first line")


def test_without_a_line_of_the_user_the_line_of_the_module() -> None:
    text = message(nn.Sequential(nn.Linear(9, 8)))
    assert "in module '0' (Linear)" in text
    assert "linear.py:" in text


def failing(step: StepModule) -> None:
    try:
        step(*step.inputs())
    except ValueError as error:
        raise RuntimeError("export failed") from error


def test_causes_are_followed() -> None:
    step = StepModule(Broken(), None, (models.batch(),))
    with pytest.raises(RuntimeError) as caught:
        failing(step)
    assert "(Broken)" in blame(caught.value, step)


def test_an_op_that_fails_after_export_is_found_in_the_source() -> None:
    class Picking(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output = super().forward(input)
            return output[output > 0].sum()

    with pytest.raises(CaptureError, match=r"module '0'.* at .*test_blame.py:\d+"):
        capture(nn.Sequential(Picking(8, 8)), (models.batch(),))
