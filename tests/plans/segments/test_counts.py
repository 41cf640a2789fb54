"""Means over counts under micro-batches: loss and gradients of the whole batch in plain PyTorch.

Every test makes a plan of its own model, which takes a second or two.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import InputError, OtherLossError
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for
from tests.tracing import losses

WORDS = 11


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
        self.register_buffer("weights", torch.rand(WORDS) + 0.5)

    def forward(self, words):
        return self.head(torch.tanh(self.table(words)))


class Scored(nn.Module):
    """The model and its loss in one, with class weights that are a buffer."""

    def __init__(self, smoothing=0.0):
        super().__init__()
        self.model, self.smoothing = Words(), smoothing

    def forward(self, words, targets):
        return functional.cross_entropy(
            self.model(words).flatten(0, 1), targets.flatten(), self.model.weights,
            label_smoothing=self.smoothing,
        )  # fmt: skip


def batch(pads=(0, 4, 1, 2), ignored=-100):
    torch.manual_seed(1)
    words, targets = torch.randint(0, WORDS, (4, 5)), torch.randint(0, WORDS, (4, 5))
    for row, count in zip(targets, pads, strict=True):
        row[:count] = ignored
    return words, targets


def token_mean(scores, targets):
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def shifted(scores, targets):
    targets = functional.pad(targets, (0, 1), value=-100)[:, 1:].contiguous()
    return 0.5 * functional.cross_entropy(scores.view(-1, WORDS), targets.view(-1))


def masked(scores, targets):
    mask = (targets >= 0).float()
    each = functional.cross_entropy(
        scores.transpose(1, 2), targets.clamp(min=0), reduction="none"
    )
    return (each * mask).sum() / mask.sum().clamp(min=1)


def other_ignored(scores, targets):
    chances = functional.log_softmax(scores, -1).flatten(0, 1)
    return functional.nll_loss(chances, targets.clamp(min=0).flatten(), ignore_index=0)


def two_means(scores, targets):
    return token_mean(scores, targets) + 0.1 * scores.square().mean()


def steps(model, inputs, loss, given="pp=1,microbatch_size=1"):
    """Loss and gradients of plain PyTorch on the whole batch, and of a plan."""
    alone = copy.deepcopy(model)
    step = StepModule(alone, loss, inputs)
    expected = step(*step.inputs())
    expected.backward()
    workload = Workload("words", model, inputs, loss)
    plan = plan_for(workload, given, 1)
    runner = plan.apply(model, inputs, loss=loss)
    found = runner.step(inputs)
    pairs = [(runner.gradients()[n], p.grad) for n, p in alone.named_parameters()]
    return [(found, expected.detach()), *pairs]


def normalised(scores, targets):
    kept = (targets >= 0).float()
    return (scores.square().mean(-1) * (kept / kept.sum())).sum()


def each_divided(scores, targets):
    kept = (targets >= 0).float()
    return (scores.square().mean(-1) * kept / kept.mean()).mean()


def written(scores, targets):
    """Its mask is written in place; the batch stays as it was."""
    kept = targets.clone().clamp_(max=0) + 1.0
    kept[:, 1] = 0.5
    return (scores.square().mean(-1) * kept.clamp(min=0)).sum() / kept.clamp(
        min=0
    ).sum()


def two_of_one_count(scores, targets):
    kept = (targets >= 0).float()
    squares = (scores.square().mean(-1) * kept).sum() / kept.sum().clamp(min=1)
    return (
        token_mean(scores, targets)
        + 0.1 * squares
        - token_mean(scores.tanh(), targets) / 2
    )


@pytest.mark.parametrize(
    "loss",
    [
        token_mean,
        shifted,
        masked,
        other_ignored,
        normalised,
        each_divided,
        two_of_one_count,
        written,
    ],
)
def test_a_mean_over_counts_is_that_of_the_whole_batch(loss):
    for found, expected in steps(Words(), batch(), loss):
        torch.testing.assert_close(found, expected)


def whole_numbers(scores, targets):
    """Divides by the largest count of a sentence, a number of the whole batch that is no sum."""
    kept = (targets >= 0).float()
    return (scores.square().mean(-1) * kept / kept.sum(1).max()).mean()


def sum_beside(scores, targets):
    return token_mean(scores, targets) + 0.1 * scores.square().sum()


def reciprocal(scores, targets):
    kept = (targets >= 0).float()
    return (scores.square().mean(-1) * kept).sum() * (1 / kept.sum())


@pytest.mark.parametrize("loss", [whole_numbers, sum_beside, reciprocal])
def test_what_needs_another_number_of_the_batch_is_refused(loss):
    for pads in ((0, 4, 1, 2), (1, 1, 1, 1)):
        with pytest.raises(InputError, match="a sum over the examples"):
            steps(Words(), batch(pads), loss)


NOT_PLANNED = {"two counts and a sum", "l2 beside a sum", "rare ones weigh more",
               "inputs normed over the batch"}  # fmt: skip


@pytest.mark.parametrize("name", losses.REPAIRED)
def test_a_loss_is_that_of_the_whole_batch_or_refused(name):
    work = losses.REPAIRED[name]()
    with pytest.raises(InputError) if name in NOT_PLANNED else nullcontext():
        for found, expected in steps(
            work.model, work.inputs, work.loss, "pp=1,microbatch_size=4"
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def added(scores, targets):
    return 0.5 * functional.cross_entropy(
        scores.transpose(1, 2), targets, reduction="sum", ignore_index=-100
    )


def test_a_sum_is_that_of_the_whole_batch():
    """As PyTorch adds it up in one batch; the plan says that it is one."""
    workload = Workload("words", Words(), batch(), added)
    assert plan_for(workload, "pp=1,microbatch_size=1", 1).file.loss == "sum"
    for found, expected in steps(Words(), batch(), added):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_weights_count_too(smoothing):
    for found, expected in steps(Scored(smoothing), batch(), None):
        torch.testing.assert_close(found, expected)


def test_other_losses_need_equal_counts():
    for found, expected in steps(Words(), batch((1, 1, 1, 1)), two_means):
        torch.testing.assert_close(found, expected)
    with pytest.raises(InputError, match="means over counts that differ"):
        steps(Words(), batch(), two_means)


def test_a_micro_batch_that_counts_nothing_is_refused():
    with pytest.raises(InputError, match="counts nothing"):
        steps(Words(), batch((0, 5, 0, 0)), token_mean)


def test_inputs_of_another_length_are_refused():
    inputs = batch()
    workload = Workload("words", Words(), inputs, token_mean)
    runner = plan_for(workload, "pp=1,microbatch_size=2", 1).apply(
        Words(), inputs, loss=token_mean
    )
    with pytest.raises(InputError, match=r"input \[0\] has shape \[4, 4\]"):
        runner.step(tuple(x[:, 1:] for x in inputs))


@pytest.mark.parametrize("size", [2, 4])
def test_an_input_that_all_examples_share_stays_whole(size):
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, size)

        def forward(self, x, mixing):
            return self.layer(x) @ mixing

    torch.manual_seed(0)
    model, inputs = (
        Mixing(),
        (torch.randn(8, 3), torch.randn(size, size), torch.randn(8, size)),
    )
    expected = functional.mse_loss(copy.deepcopy(model)(*inputs[:2]), inputs[2])
    workload = Workload("mixing", model, inputs, functional.mse_loss)
    plan = plan_for(workload, "pp=1,microbatch_size=2", 1)
    runner = plan.apply(model, inputs, loss=functional.mse_loss)
    torch.testing.assert_close(runner.step(inputs), expected.detach())


def test_a_divisor_that_does_not_add_up_is_refused():
    """A count plus one of every micro-batch is no count plus one of the batch."""

    def smoothed(scores, targets):
        kept = targets >= 0
        return (scores.square().mean(-1) * kept).sum() / (kept.sum() + 1)

    work = Workload("Words", Words(), batch(), smoothed)
    with pytest.raises(InputError, match="'add' makes of the whole batch"):
        plan_for(work, "microbatch_size=2", 1)
    plan = plan_for(work, "microbatch_size=2", 1, accept_other_loss=True)
    with pytest.raises(OtherLossError, match="'add' makes, which does not add up"):
        plan.apply(work.model, work.inputs, loss=work.loss)
