"""Verification finds what differs, names the worst, and knows rounding from faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gnnplace.errors import ExecutionError, InputError
from gnnplace.run.checking.verification import (
    compare,
    compare_with_whole_batch,
    reference_step,
    verify,
)
from gnnplace.run.placed.result import Execution, StepValues
from gnnplace.tracing.models import capture_workload
from gnnplace.tracing.program.microbatching import with_program_microbatches
from gnnplace.zoo import Workload
from tests.run.programs import two_towers
from tests.tracing.straight_run import run_program

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
    ("error", "passed"),
    [(1e-7, True), (1e-2, False), (float("nan"), False), (1e6, False)],
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
    ops = [
        replace(op, target=bad) if op.name == "relu1.0" else op for op in program.ops
    ]
    with pytest.raises(ExecutionError, match=r"in op 'relu1.0': ValueError: not today"):
        reference_step(replace(program, ops=tuple(ops)))


def work(*between: nn.Module, reduction: str = "sum") -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), *between, nn.Tanh(), nn.Linear(6, 3))
    loss = nn.CrossEntropyLoss(reduction=reduction)
    return Workload("net", model, (torch.randn(8, 4), torch.randint(3, (8,))), loss)


@pytest.mark.parametrize("count", [1, 4])
def test_loss_and_gradients_are_compared_with_the_users_own_module(count: int) -> None:
    workload = work()
    cut = with_program_microbatches(capture_workload(workload, count), count)
    values = reference_step(cut)
    found = compare_with_whole_batch(cut, values)
    assert found.passed
    assert found.gradients == 4
    assert "equal those of eager PyTorch" in found.summary()
    assert all(p.grad is None for p in workload.model.parameters())
    wrong = dict(values.gradients) | {"0.bias": values.gradients["0.bias"] * 1.01}
    worse = compare_with_whole_batch(cut, replace(values, gradients=wrong))
    assert not worse.passed
    assert worse.worst == "the gradient of 0.bias"
    assert "are NOT" in worse.summary()


def test_a_mean_over_shares_of_a_sum_is_seen() -> None:
    """What one process that cuts the batch alike would never see."""
    workload = work()
    cut = with_program_microbatches(capture_workload(workload, 2), 2)
    values = reference_step(cut)
    assert values.loss is not None
    quarter = replace(values, loss=values.loss / 2)
    assert compare_with_whole_batch(cut, quarter).worst == "the loss"


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (nn.Dropout(0.5), "anew for every micro-batch"),
        (nn.BatchNorm1d(6), "batch norm (1 in all)"),
    ],
)
def test_the_stated_exceptions_are_not_compared(
    between: nn.Module, reason: str
) -> None:
    cut = with_program_microbatches(capture_workload(work(between), 2), 2)
    found = compare_with_whole_batch(cut, reference_step(cut))
    assert reason in found.reason
    assert found.passed
    assert "not compared" in found.summary()


class Calling(nn.Module):
    """A layer that is a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Repeating(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


DRAWING = {
    "dropout": (nn.Dropout(0.5), 1),
    "alpha dropout": (nn.AlphaDropout(0.3), 1),
    "slopes": (nn.RReLU(), 1),
    "noise": (Calling(lambda x: x + torch.randn_like(x)), 1),
    "order": (Calling(lambda x: x[:, torch.randperm(6)]), 1),
    "channels": (
        Calling(lambda x: functional.dropout2d(x.view(8, 6, 1, 1))[:, :, 0, 0]),
        1,
    ),
    "columns": (
        Calling(lambda x: functional.dropout(x.view(2, 4, 6).mT).mT.reshape(8, 6)),
        1,
    ),
    "attention": (nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2), 4),
    "checkpoint": (
        Repeating(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3)),
        2,
    ),
}


@pytest.mark.parametrize("name", DRAWING)
def test_a_model_that_draws_is_compared_with_eager_on_the_same_numbers(
    name: str,
) -> None:
    layer, draws = DRAWING[name]
    program = capture_workload(work(layer))
    values, state = reference_step(program), torch.get_rng_state()
    found = compare_with_whole_batch(program, values)
    assert found.passed
    assert found.draws == draws, found.summary()
    assert "whole batch with the same random numbers" in found.summary()
    assert torch.equal(state, torch.get_rng_state())
    wrong = dict(values.gradients) | {"0.bias": values.gradients["0.bias"] * 1.01}
    assert not compare_with_whole_batch(
        program, replace(values, gradients=wrong)
    ).passed


def test_draws_that_nothing_reads_do_not_keep_a_model_from_being_compared() -> None:
    program = capture_workload(work(Calling(lambda x: (functional.dropout(x), x)[1])))
    found = compare_with_whole_batch(program, reference_step(program))
    assert found.passed
    assert (found.reason, found.draws) == ("", 0)


def test_random_numbers_of_gpus_are_not_compared() -> None:
    program = capture_workload(work(nn.Dropout(0.5)))
    found = compare_with_whole_batch(program, reference_step(program), on_gpus=True)
    assert "on GPUs" in found.reason


class Steep(nn.Module):
    """A norm of large, nearly equal numbers: float32 has few digits left."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.low, self.norm, self.high = (
            nn.Linear(4, 16),
            nn.LayerNorm(16),
            nn.Linear(16, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.high(torch.relu(self.norm(self.low(x) * 1e-3 + 3.0)))


@pytest.mark.parametrize(("fault", "passed"), [(1.0, True), (1.2, False)])
def test_what_eager_itself_computes_badly_is_measured_from_double_precision(
    fault: float, passed: bool
) -> None:
    """The run is another float32 computation of the step: constants added in another order."""
    model, inputs = Steep(), (torch.randn(8, 4), torch.arange(8) % 3)
    work = Workload("Steep", model, inputs, nn.functional.cross_entropy)
    program = capture_workload(work)

    class Other(Steep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.high(torch.relu(self.norm((self.low(x) * 1e-3 + 1.0) + 2.0)))

    other = Other()
    loss = work.loss(other(inputs[0]), inputs[1])
    loss.backward()
    gradients = {n: p.grad for n, p in other.named_parameters() if p.grad is not None}
    gradients["low.weight"] *= fault
    values = StepValues(loss=float(loss.detach()), gradients=gradients)
    assert program.batch is not None
    found = compare_with_whole_batch(program, values)
    assert found.passed is passed, found.summary()
    assert found.tolerance >= 1e-4
