"""A run beside eager PyTorch on the whole batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gnnplace.execution.reference import reference_step
from gnnplace.execution.whole_batch import beside_whole_batch
from gnnplace.tracing import microbatched
from gnnplace.tracing.models import capture_workload
from gnnplace.zoo import Workload


def work(*between: nn.Module, reduction: str = "sum") -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), *between, nn.Tanh(), nn.Linear(6, 3))
    loss = nn.CrossEntropyLoss(reduction=reduction)
    return Workload("net", model, (torch.randn(8, 4), torch.randint(3, (8,))), loss)


@pytest.mark.parametrize("count", [1, 4])
def test_loss_and_gradients_are_compared_with_the_users_own_module(count: int) -> None:
    workload = work()
    cut = microbatched(capture_workload(workload, count), count)
    values = reference_step(cut)
    found = beside_whole_batch(cut, values)
    assert found.passed
    assert found.gradients == 4
    assert "equal those of eager PyTorch" in found.summary()
    assert all(p.grad is None for p in workload.model.parameters())
    wrong = dict(values.gradients) | {"0.bias": values.gradients["0.bias"] * 1.01}
    worse = beside_whole_batch(cut, replace(values, gradients=wrong))
    assert not worse.passed
    assert worse.worst == "the gradient of 0.bias"
    assert "are NOT" in worse.summary()


def test_a_mean_over_shares_of_a_sum_is_seen() -> None:
    """What one process that cuts the batch alike would never see."""
    workload = work()
    cut = microbatched(capture_workload(workload, 2), 2)
    values = reference_step(cut)
    assert values.loss is not None
    quarter = replace(values, loss=values.loss / 2)
    assert beside_whole_batch(cut, quarter).worst == "the loss"


@pytest.mark.parametrize(
    ("between", "reason"),
    [(nn.Dropout(0.5), "draws random numbers"), (nn.BatchNorm1d(6), "batch norm (1 in all)")],
)
def test_the_stated_exceptions_are_not_compared(between: nn.Module, reason: str) -> None:
    cut = microbatched(capture_workload(work(between), 2), 2)
    found = beside_whole_batch(cut, reference_step(cut))
    assert reason in found.reason
    assert found.passed
    assert "not compared" in found.summary()
