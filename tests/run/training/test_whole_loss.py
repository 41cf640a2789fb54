"""`compile` with micro-batches trains the loss of the whole batch, whatever the batch."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import InputError, OtherLossError
from gnnplace.tracing.models import capture_workload
from gnnplace.tracing.step import StepModule
from tests.run.programs import cpu_cluster, random_placement
from tests.tracing import losses
from tests.tracing.batch.test_cutter import Custom


def compiled(work, optimizer, **options):
    program = capture_workload(work, 4, accept_other_loss=True)
    bare = replace(program, initial={})  # its ops need not be measured
    problem = profile(bare, cpu_cluster(2), groups=30, microbatches=4)
    return gnnplace.compile(
        work.model, random_placement(problem, 0, shuffle=False), optimizer, loss=work.loss,
        problem=problem, timeout=30.0, mode="emulated", **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *("class weights, smoothed", "two counts and a sum"),
        pytest.param("unequal masks", marks=pytest.mark.campaign),
    ],
)
def test_batches_with_other_masks_are_trained_as_pytorch_does(name):
    """A loss with a buffer of its own, too."""
    work = losses.REPAIRED[name]()
    theirs = copy.deepcopy(work.model)
    update, random = torch.optim.AdamW(theirs.parameters(), lr=0.01), torch.Generator()
    with compiled(work, torch.optim.AdamW(work.model.parameters(), lr=0.01)) as step:
        for _ in range(3):
            order = torch.randperm(losses.BATCH, generator=random)
            batch = tuple(x[order].contiguous() for x in work.inputs)
            update.zero_grad()
            loss = StepModule(theirs, work.loss, batch)(*batch)
            loss.backward()
            update.step()
            assert float(step(batch)) == pytest.approx(float(loss), rel=1e-5)
        state = step.state_dict()
    assert list(state) == list(theirs.state_dict())
    for key, tensor in theirs.state_dict().items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-4, atol=1e-5)


def test_a_loss_that_mixes_examples_is_refused_unless_it_is_accepted():
    work = losses.REFUSED["clip"][1]()
    with (
        pytest.raises(OtherLossError, match="op 'matmul'"),
        compiled(work, "sgd") as step,
    ):
        step(work.inputs)
    with compiled(work, "sgd", accept_other_loss=True) as step:
        assert torch.isfinite(step(work.inputs))


def test_counts_are_checked_in_every_step_where_nothing_can_be_repaired():
    entropy = torch.nn.functional.cross_entropy
    work = losses.case(Custom(), (losses.X, losses.Y), entropy)
    padded = losses.Y.clone()
    padded[0] = -100
    with compiled(work, "sgd", inputs=work.inputs) as step:
        step(work.inputs)
        with pytest.raises(
            InputError, match="over 1 elements in micro-batch 0 and over 2"
        ):
            step((losses.X, padded))
        assert torch.isfinite(step(work.inputs))
