"""A model and its loss as one module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.tracing.step import StepModule, default_loss

X, Y = torch.ones(2, 4), torch.zeros(2, 4)


def test_default_loss() -> None:
    assert default_loss({"loss": X.sum(), "logits": X}) == X.sum()
    assert default_loss((X, torch.ones(2, dtype=torch.long), [X])) == 2 * X.sum()
    with pytest.raises(InputError, match="give a loss"):
        default_loss(torch.ones(2, dtype=torch.long))


def test_constants_among_inputs_and_sources() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return super().forward(input) * scale

    step = StepModule(Scaled(4, 4), None, (X, 3.0))
    assert step.sources() == ("0",)
    assert len(step.inputs()) == 1
    assert StepModule(Scaled(4, 4), None, {"input": X}).sources() == ("input",)


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"Linear.forward.* cannot take 2 positional"):
        StepModule(nn.Linear(4, 4), None, (X, X))
