"""Losses of a cut batch beside eager PyTorch's on the whole one: right, repaired or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import CaptureError, InputError, OtherLossError
from gnnplace.tracing.models import capture_model, capture_workload
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program.microbatching import (
    with_inputs,
    with_program_microbatches,
)
from gnnplace.tracing.program.program import Program
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload
from tests.tracing import losses
from tests.tracing.straight_run import run_program

FINE = {**losses.RIGHT, **losses.REPAIRED}


def eager(work: Workload) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of the whole batch, by parameter."""
    step = StepModule(copy.deepcopy(work.model), work.loss, work.inputs)
    loss = step(*step.inputs())
    loss.backward()
    named = step.model.named_parameters()
    return loss.detach(), {n: p.grad for n, p in named if p.grad is not None}


def check(program: Program, work: Workload, count: int) -> None:
    result = run_program(with_program_microbatches(program, count))
    loss, gradients = eager(work)
    torch.testing.assert_close(result.loss, loss, rtol=1e-5, atol=1e-6)
    mean = gradients_of(program, count)
    for name, gradient in gradients.items():
        torch.testing.assert_close(mean[name], gradient, rtol=1e-4, atol=2e-6)


def gradients_of(program: Program, count: int) -> dict[str, torch.Tensor]:
    """The mean over the micro-batches, by what an update with the step size 1 leaves."""
    cut = with_program_microbatches(program, count)
    after = run_program(cut).state
    return {
        name: (cut.initial[f"parameter.{name}"] - after[f"parameter.{name}"]) / 0.01
        for name in program.gradients
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param(
            name, count, marks=pytest.mark.campaign if (count == 2) == k % 2 else ()
        )
        for k, name in enumerate(FINE)
        for count in (2, 8)
    ],
)
def test_loss_and_gradients_are_those_of_the_whole_batch(name: str, count: int) -> None:
    work = FINE[name]()
    program = capture_workload(work, count)
    check(program, work, count)
    assert program.batch is not None
    repairs = [n for n in program.batch.notes if "cannot be cut" not in n]
    assert bool(repairs) == (name in losses.REPAIRED)


@pytest.mark.parametrize("name", losses.REFUSED)
def test_a_loss_that_mixes_examples_is_refused_by_its_op(name: str) -> None:
    told, make = losses.REFUSED[name]
    with pytest.raises(OtherLossError) as caught:
        capture_workload(make(), 2)
    message = str(caught.value)
    assert told in message
    assert "2 micro-batches" in message
    assert "--accept-other-loss" in message
    assert "\n" not in message


def test_the_line_of_the_loss_is_named() -> None:
    with pytest.raises(OtherLossError, match=r"at .*losses\.py:\d+ cannot be cut"):
        capture_workload(losses.REFUSED["clip"][1](), 2)


@pytest.mark.parametrize("name", sorted(losses.REFUSED.keys() - {"mixed up examples"}))
def test_who_knows_may_have_another_loss(name: str) -> None:
    """The mean over the shares of what the loss says of each, as gradient accumulation has it."""
    work = losses.REFUSED[name][1]()
    program = capture_workload(work, 2, accept_other_loss=True)
    assert program.batch is not None
    assert "cannot be cut" in program.batch.differs
    parts = [
        eager(Workload("", work.model, part, work.loss))[0]
        for part in halves(work.inputs)
    ]
    found = run_program(with_program_microbatches(program, 2)).loss
    torch.testing.assert_close(found, torch.stack(parts).mean(), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, eager(work)[0], rtol=1e-4)


def test_a_loss_that_is_half_repaired_may_be_accepted() -> None:
    """Class weights could be given to shares, were the other term not one over pairs."""
    weights = torch.rand(5) + 0.5

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        pairs = (output @ output.t()).mean()
        return functional.cross_entropy(output, target, weight=weights) + pairs.sqrt()

    work = Workload("", nn.Linear(8, 5), (torch.rand(8, 8), torch.arange(8) % 5), loss)
    program = capture_workload(work, 2, accept_other_loss=True)
    assert program.batch is not None
    assert not program.batch.given
    parts = [
        eager(Workload("", work.model, part, loss))[0] for part in halves(work.inputs)
    ]
    found = run_program(with_program_microbatches(program, 2)).loss
    torch.testing.assert_close(found, torch.stack(parts).mean(), rtol=1e-5, atol=1e-6)


def halves(inputs: Any) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(x.chunk(2) for x in inputs), strict=True))


@pytest.mark.parametrize("name", losses.EXCEPTIONS)
def test_batch_norm_and_dropout_are_said(name: str) -> None:
    told, make = losses.EXCEPTIONS[name]
    batch = capture_workload(make(), 2).batch
    assert batch is not None
    assert told in " ".join(batch.exceptions)
    assert not batch.notes


def test_another_batch_is_given_its_own_counts() -> None:
    work = losses.REPAIRED["unequal masks"]()
    cut = with_program_microbatches(capture_workload(work, 4), 4)
    other = (*work.inputs[:2], losses.MASK.flip(0) * 3)
    assert cut.batch is not None
    result = run_program(with_inputs(cut, cut.batch.cut(other)))
    torch.testing.assert_close(
        result.loss, eager(Workload("", work.model, other, work.loss))[0]
    )


def test_a_share_without_a_word() -> None:
    """Its mean alone would be not a number."""
    work = losses.REPAIRED["unequal masks"]()
    work = Workload("", work.model, (losses.X, losses.T, torch.eye(8)[0]), work.loss)
    check(capture_workload(work, 8), work, 8)


@pytest.mark.parametrize(
    "name", ["padding", "l2 beside a sum", "class weights, smoothed"]
)
def test_twenty_steps_of_adamw_end_where_pytorch_ends(name: str) -> None:
    work = losses.REPAIRED[name]()
    cut = with_program_microbatches(capture_workload(work, 4, optimizer="adamw"), 4)
    assert cut.batch is not None
    step = StepModule(copy.deepcopy(work.model), work.loss, work.inputs)
    update, random = (
        torch.optim.AdamW(step.parameters()),
        torch.Generator().manual_seed(1),
    )
    state: dict[str, torch.Tensor] = {}
    for number in range(20):
        order = torch.randperm(losses.BATCH, generator=random)
        batch = tuple(x[order].contiguous() for x in work.inputs)
        result = run_program(with_inputs(cut, cut.batch.cut(batch)), number, state)
        state = result.state
        update.zero_grad()
        loss = step(*batch)
        loss.backward()
        update.step()
        torch.testing.assert_close(result.loss, loss.detach(), rtol=1e-4, atol=1e-5)
    for parameter, tensor in step.model.named_parameters():
        torch.testing.assert_close(state[f"parameter.{parameter}"], tensor.detach(), rtol=1e-4,
                                   atol=1e-5)  # fmt: skip


class Reversed(torch.autograd.Function):
    """Gradient reversal: every example by itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -0.5 * gradient


class Centred(Reversed):
    """Gradients less their mean over the examples."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient - gradient.mean(0)


def hooked(
    hook: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    def hooks(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(hook)
        return x

    return hooks


class Through(nn.Module):
    """A network through a function whose gradients are its own."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = (
            nn.Linear(3, 4),
            nn.Linear(4, 1),
            function,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.function(self.first(x)))).square().mean()


def through(function: Callable[[torch.Tensor], torch.Tensor]) -> Workload:
    random = torch.Generator().manual_seed(0)
    return Workload(
        "through", Through(function), (torch.randn(8, 3, generator=random),), None
    )


@pytest.mark.parametrize(
    "function", [lambda x: Reversed.apply(x), hooked(lambda g: 3 * g)]
)
def test_gradients_of_its_own_that_keep_examples_apart_are_cut(function: Any) -> None:
    work = through(function)
    program = capture_workload(work, 4)
    check(program, work, 4)
    assert "numbers of the shares are those of the batch" in program.batch.notes[-1]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: Centred.apply(x), "autograd function Centred"),
        (hooked(lambda g: g - g.mean(0)), "hook '<lambda>'"),
        (hooked(lambda g: g.clamp(-1.0, 1.0)), "hook '<lambda>'"),
    ],
)
def test_gradients_of_its_own_that_mix_examples_are_refused(
    function: Any, told: str
) -> None:
    with pytest.raises(OtherLossError, match=f"{told}.* the gradient of ") as caught:
        capture_workload(through(function), 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hook", "fine"), [(lambda g: 3 * g, True), (lambda g: g.clamp(-1, 1), False)]
)
def test_a_hook_of_a_parameter_is_held_against_shares(hook: Any, fine: bool) -> None:
    work = through(torch.sin)
    work.model.first.weight.register_hook(hook)
    if fine:
        program = capture_workload(work, 4)
        assert "hook '<lambda>' of a tensor" in program.batch.notes[-1]
        return
    with pytest.raises(OtherLossError, match="hook '<lambda>' of a tensor"):
        capture_workload(work, 4)


class Square(torch.autograd.Function):
    """A backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * gradient * x


class Custom(nn.Module):
    """A linear layer and a function with a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Square.apply(self.layer(x))
        return found


def test_a_function_with_its_own_backward_needs_equal_counts() -> None:
    """It is traced as it is, so that nothing can be repaired."""
    work = losses.case(Custom(), (losses.X, losses.Y), functional.cross_entropy)
    program = capture_workload(work, 2)
    check(program, work, 2)
    assert program.batch is not None
    padded = losses.Y.clone()
    padded[:3] = -100
    with pytest.raises(InputError, match="over 1 elements in micro-batch 0 and over 4"):
        program.batch.check((losses.X, padded))
    with pytest.raises(
        OtherLossError, match="the model does more than a rewritten forward pass keeps"
    ):
        capture_workload(Workload("", work.model, (losses.X, padded), work.loss), 2)


SMALL = "&".join(
    ("vocab_size=97", "hidden_size=32", "num_hidden_layers=1", "num_attention_heads=4",
     "intermediate_size=64", "batch=4", "length=8", "num_key_value_heads=2")
)  # fmt: skip


@pytest.mark.parametrize("name", [*losses.RIGHT, *losses.REPAIRED, *losses.REFUSED])
def test_no_numbers_are_needed_for_what_rules_decide(name: str) -> None:
    """A fake capture decides as a real one does, but refuses what only numbers can decide."""
    makes: dict[str, Callable[[], Workload]] = FINE | {
        n: m for n, (_, m) in losses.REFUSED.items()
    }
    work = makes[name]()
    by_numbers = name in ("loop over examples", "sorted and back")
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = tuple(mode.from_tensor(x) for x in work.inputs)
    fake = Workload("", work.model, inputs, work.loss)
    if name in losses.REFUSED or by_numbers:
        with pytest.raises(OtherLossError):
            capture_workload(fake, 2)
    else:
        assert capture_workload(fake, 2).batch is not None


T5 = "hf:t5?batch=2&length=4&vocab_size=97&d_model=32&num_layers=1&num_heads=4&d_kv=8&d_ff=64"


@pytest.mark.parametrize(
    "model",
    [
        "rnn_lm?batch=4&length=2",
        *(pytest.param(model, marks=pytest.mark.campaign)
          for model in ("mlp?batch=8", "two_tower?batch=8", "moe?batch=8", T5, f"hf:llama?{SMALL}",
                        "vit?batch=2&size=16&layers=1&width=32&heads=2", "small_resnet?batch=4",
                        f"hf:mixtral?num_local_experts=4&{SMALL}")),
        "gpt2?batch=2&length=8&layers=1&width=32&heads=2&vocabulary=50",
    ],
)  # fmt: skip
def test_models_of_the_zoo_and_of_hugging_face_may_be_cut(model: str) -> None:
    program = capture_model(model, options=CaptureOptions(microbatches=2))
    assert program.batch is not None
    assert not program.batch.differs


class Flat(nn.Module):
    """Puts examples and words on one axis, as its targets have them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).flatten(0, 1)


def test_targets_that_are_no_rows_of_examples_are_named() -> None:
    inputs = torch.randn(4, 5, 4), torch.randint(0, 3, (20,))
    work = Workload("", Flat(), inputs, functional.cross_entropy)
    assert capture_workload(work, 1).ops
    told = r"first input has 2 examples; the input of shape \[20\] .* give it one row an example"
    with pytest.raises(CaptureError, match=told) as caught:
        capture_workload(work, 2)
    assert "\n" not in str(caught.value)


class WordsFirst(nn.Module):
    """Takes [words, batch, width], as recurrent layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(4, 6), nn.Linear(6, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(words)[0][-1])


def test_a_batch_on_the_second_axis_is_cut_there() -> None:
    """Of a model that is built for each size; it may draw its batch before its parameters."""

    def build(batch: int) -> Workload:
        words = torch.randn(
            5, losses.BATCH, 4, generator=torch.Generator().manual_seed(1)
        )
        torch.manual_seed(batch)
        model = WordsFirst()
        return losses.case(
            model, (words[:, :batch], losses.Y[:batch]), nn.CrossEntropyLoss()
        )

    whole = build(losses.BATCH)
    program = capture_workload(whole, 4, share=build(2))
    assert program.batch is not None
    assert program.batch.axes == (1, 0)
    check(program, whole, 4)


def test_inference_may_be_cut_where_outputs_are_of_examples() -> None:
    work = losses.RIGHT["mean"]()
    alone = Workload("", work.model, work.inputs[:1], None)
    assert capture_workload(alone, 2, forward_only=True).batch is not None
    with pytest.raises(OtherLossError, match="a sum over the examples"):
        capture_workload(Workload("", Summed(), work.inputs[:1]), 2, forward_only=True)


class Summed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)
