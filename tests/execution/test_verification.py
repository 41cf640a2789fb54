"""Verification finds what differs, names the worst, and knows rounding from faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnnplace.errors import InputError
from gnnplace.execution import Execution, reference_step, verify
from gnnplace.execution.result import StepValues
from gnnplace.execution.verification import compare
from tests.execution.programs import two_towers

PROGRAM = two_towers()


def reference() -> StepValues:
    return reference_step(PROGRAM)


def execution(values: StepValues | None) -> Execution:
    return Execution("measured", "shm", ("cpu:0",), (), values)


def test_the_reference_step_is_sgd():
    values = reference()
    assert values.gradients.keys() == values.parameters.keys()
    for name, gradient in values.gradients.items():
        before = PROGRAM.initial[f"parameter.{name}"]
        assert torch.equal(values.parameters[name], before.add(gradient, alpha=-0.1))


def test_equal_runs_are_bitwise_equal():
    result = verify(PROGRAM, execution(reference()))
    assert result.bitwise
    assert result.passed
    assert result.tensors == 9
    assert result.summary() == "9 tensors bitwise equal to one process"


@pytest.mark.parametrize(
    ("error", "passed"), [(1e-7, True), (1e-2, False), (float("nan"), False), (1e6, False)]
)
def test_the_worst_tensor_is_named(error, passed):
    values = reference()
    values.gradients["w0.1"][0, 0] += values.gradients["w0.1"].abs().max() * error
    values.parameters["w1.0"][1, 1] *= 1 + 2e-7
    result = verify(PROGRAM, execution(values))
    assert not result.bitwise
    assert result.passed is passed
    assert "2 of 9 tensors differ" in result.summary()
    if not passed:
        assert "NOT within tolerance; the worst is gradient of w0.1" in result.summary()


def test_minus_zero_is_another_bit_pattern():
    values = StepValues(loss=None, outputs={"y": torch.tensor([0.0])})
    other = StepValues(loss=None, outputs={"y": torch.tensor([-0.0])})
    result = compare(values, other)
    assert not result.bitwise
    assert result.passed


def test_another_shape_or_type_never_passes():
    values = StepValues(loss=None, outputs={"y": torch.zeros(2)})
    for tensor in (torch.zeros(3), torch.zeros(2, dtype=torch.float64)):
        assert not compare(StepValues(loss=None, outputs={"y": tensor}), values).passed


def test_a_run_of_something_else_is_refused():
    values = reference()
    with pytest.raises(InputError, match="was it another program"):
        verify(PROGRAM, execution(replace(values, gradients={})))
    with pytest.raises(InputError, match="outputs=True"):
        verify(PROGRAM, execution(None))
