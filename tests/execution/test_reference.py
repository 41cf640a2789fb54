"""The reference is the captured program, as its own runner runs it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnnplace.errors import ExecutionError
from gnnplace.execution import reference_step
from tests.execution.programs import two_towers
from tests.tracing.straight_run import run_program


def test_it_equals_the_programs_own_runner_and_leaves_the_program_alone():
    program = two_towers()
    before = {name: tensor.clone() for name, tensor in program.initial.items()}
    values, result = reference_step(program), run_program(program)
    assert values.loss == float(result.losses[0])
    for name, gradient in result.gradients.items():
        assert torch.equal(values.gradients[name], gradient)
    for name, parameter in values.parameters.items():
        assert torch.equal(parameter, result.state[f"parameter.{name}"])
    assert all(torch.equal(before[name], program.initial[name]) for name in before)


def test_an_op_that_fails_is_named():
    def bad(*_: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    program = two_towers()
    ops = [replace(op, target=bad) if op.name == "relu1.0" else op for op in program.ops]
    with pytest.raises(ExecutionError, match=r"in op 'relu1.0': ValueError: not today"):
        reference_step(replace(program, ops=tuple(ops)))
