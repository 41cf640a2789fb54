"""Optimizers by name, and their state."""

from __future__ import annotations

import pytest
import torch

from gnnplace.errors import InputError
from gnnplace.tracing.program.optimizers import adamw, make_optimizer, sgd


def test_by_name() -> None:
    assert make_optimizer("sgd") == sgd()
    assert make_optimizer("adamw") == adamw()
    assert make_optimizer(sgd(0.5)) == sgd(0.5)
    with pytest.raises(InputError, match="'adam': there are 'sgd' and 'adamw'"):
        make_optimizer("adam")


def test_state_has_the_type_and_shape_of_the_parameter() -> None:
    parameter = torch.ones(2, 3, dtype=torch.bfloat16)
    step, mean, square = adamw().new_state(parameter)
    assert step.shape == ()
    assert mean.shape == square.shape == (2, 3)
    assert mean.dtype == torch.bfloat16
    assert sgd().new_state(parameter) == []
    assert len(sgd(momentum=0.9).new_state(parameter)) == 1
