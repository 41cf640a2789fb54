"""Autograd functions of one's own: one call each, cut where parts, tried, are the whole."""

import pytest
import torch
from torch import nn
from torch.autograd import Function

from gnnplace.errors import CaptureError, InputError
from gnnplace.plans.segments.chains import why_not
from gnnplace.torch_names import IS_APPLY_OF_C
from gnnplace.tracing.calls import autograd_functions
from gnnplace.tracing.calls.autograd_functions import user_functions
from gnnplace.tracing.models import capture_workload
from gnnplace.tracing.recording.recorder import record_calls
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for
from tests.tracing.rules.oracle import check, traced


class Gelu(Function):
    """With a gradient that is not its own, which shows whose backward pass runs."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    def backward(ctx, given):
        return given * torch.sigmoid(1.702 * ctx.saved_tensors[0])


class Scaled(Function):
    @staticmethod
    def forward(x, scale=3.0):
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, given):
        return 2 * given * ctx.scale, None


class Doubled(Function):
    """In place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, given):
        return 2 * given


class Most(Function):
    """Three results, of which one learns."""

    @staticmethod
    def forward(ctx, x):
        places = x.argmax(-1)
        ctx.mark_non_differentiable(places)
        return x * 2, places, None

    @staticmethod
    def backward(ctx, given, *_):
        return 2 * given


class Inside(Function):
    """Of another one."""

    @staticmethod
    def forward(ctx, x):
        return Gelu.apply(x) * 2

    @staticmethod
    def backward(ctx, given):
        return 2 * given


class Product(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, given):
        x, weight = ctx.saved_tensors
        return given @ weight.t(), x.t() @ given


class Rows(Gelu):
    """Gradients less the mean over their row."""

    @staticmethod
    def backward(ctx, given):
        return given - given.mean(-1, keepdim=True)


class Mean(Function):
    """Over all that it reads."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean()

    @staticmethod
    def backward(ctx, given):
        (x,) = ctx.saved_tensors
        return given * 3 * x / x.numel()


class Sum(Mean):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, given):
        return given * 3 * ctx.saved_tensors[0]


class Centred(Gelu):
    """Gradients less the mean over the examples."""

    @staticmethod
    def backward(ctx, given):
        return given - given.mean(0)


class Clipped(Gelu):
    @staticmethod
    def backward(ctx, given):
        return given.clamp(-1e-3, 1e-3)


class Noisy(Gelu):
    @staticmethod
    def backward(ctx, given):
        return given * torch.rand_like(given)


class Largest(Mean):
    """The largest gradient alone, over all examples."""

    @staticmethod
    def backward(ctx, given):
        (x,) = ctx.saved_tensors
        return given * torch.where(x == x.max(), x, 0)


class Angles(Function):
    """Of numbers between -1 and 1 alone: of others they are none, which says nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.acos()

    @staticmethod
    def backward(ctx, given):
        return given.flip(1)


class Through(Function):
    @staticmethod
    def forward(ctx, x, module):
        return module(x).detach()

    @staticmethod
    def backward(ctx, given):
        return given, None


BOUND = Gelu.apply


class Bound(Function):
    """Of another one that was bound before."""

    @staticmethod
    def forward(ctx, x):
        return BOUND(x) * 2

    @staticmethod
    def backward(ctx, given):
        return 2 * given


KINDS = {
    "gelu": lambda m, x: Gelu.apply(x),
    "set up apart": lambda m, x: Scaled.apply(x),
    "in place": lambda m, x: Doubled.apply(x * 1),
    "several": lambda m, x: Most.apply(x)[0] * Most.apply(x)[1].unsqueeze(-1),
    "inside": lambda m, x: Inside.apply(x),
    "product": lambda m, x: Product.apply(x, m.last.weight.t()),
    "rows": lambda m, x: Rows.apply(x),
    "mean": lambda m, x: Mean.apply(x),
    "mean of a sum": lambda m, x: Sum.apply(x) / x.shape[0],
}
MIXED = {
    "Centred": lambda m, x: Centred.apply(x),
    "Clipped": lambda m, x: Clipped.apply(x),
    "Noisy": lambda m, x: Noisy.apply(x),
    "Largest": lambda m, x: Largest.apply(x),
}


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = (
            nn.Linear(6, 8),
            nn.Linear(8, 8),
            function,
        )

    def forward(self, x):
        made = self.function(self, self.first(x))
        return made if made.dim() == 0 else self.last(made).square().mean()


def net(function, *, fake=False):
    torch.manual_seed(0)
    x = torch.randn(8, 6)
    if not fake:
        return Workload("net", Net(function), (x,), None)
    with torch._subclasses.fake_tensor.FakeTensorMode(
        allow_non_fake_inputs=True
    ) as mode:
        return Workload("net", Net(function), (mode.from_tensor(x),), None)


@pytest.mark.skipif(IS_APPLY_OF_C, reason="refused since torch 2.14")
def test_a_function_that_was_bound_before_is_seen_up_to_torch_2_13():
    assert why_not(net(lambda m, x: BOUND(x))) == ("", ())
    assert check(BOUND, real(4, 6, 8)) == {"0", "1", "2"}


@pytest.fixture
def apply_of_c(monkeypatch):
    """As since torch 2.14: a bound `apply` does not pass by the function that is replaced."""
    monkeypatch.setattr(autograd_functions, "IS_APPLY_OF_C", True)
    monkeypatch.setattr(autograd_functions, "APPLY_OWNER", Function)


@pytest.mark.parametrize("kind", ["gelu", "in place", "inside", "rows"])
def test_functions_that_are_not_bound_are_seen_where_apply_is_of_c(apply_of_c, kind):
    assert why_not(net(KINDS[kind])) == ("", ())


def test_gradients_that_mix_examples_are_refused_where_apply_is_of_c(apply_of_c):
    assert "autograd function Centred" in why_not(net(MIXED["Centred"]))[0]


@pytest.mark.parametrize(
    "function", [lambda m, x: BOUND(x), lambda m, x: Bound.apply(x)]
)
def test_a_function_that_was_bound_before_is_refused_where_apply_is_of_c(
    apply_of_c, function
):
    forward = vars(Gelu)["forward"]
    with pytest.raises(
        CaptureError, match=r"Gelu at .*py:\d+ was bound before .* call Gelu.apply"
    ):
        capture_workload(net(function), 4)
    assert vars(Gelu)["forward"] is forward


@pytest.mark.parametrize("kind", [*KINDS, *MIXED])
def test_a_recorded_step_is_the_users(kind):
    """`record_calls` proves it: value and gradients have the numbers of the user's step."""
    work = net((KINDS | MIXED)[kind])
    step = StepModule(work.model, lambda y: y, work.inputs)
    calls = record_calls(step, "net").calls
    assert any(call.kind.endswith(".apply") for call in calls)


def test_what_may_hide_tensors_is_refused_with_its_line():
    with pytest.raises(
        CaptureError, match=r"Through at .*py:\d+ is given a Linear"
    ) as told:
        plan_for(net(lambda m, x: Through.apply(x, m.last)), "tp=2", 2)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fake", [False, True])
def test_examples_that_stay_apart_are_cut(kind, fake):
    """By the numbers of the step, and where it has none by those of the function alone."""
    assert why_not(net(KINDS[kind], fake=fake)) == ("", ())


@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize("fake", [False, True])
def test_gradients_that_mix_examples_are_refused(kind, fake):
    assert f"autograd function {kind}" in why_not(net(MIXED[kind], fake=fake))[0]


def test_what_mixes_examples_is_planned_with_its_batch_whole():
    work = net(MIXED["Centred"])
    assert plan_for(work, "tp=2,microbatch_size=8", 2).feasible
    with pytest.raises(InputError, match="Centred") as told:
        plan_for(work, "dp=2,microbatch_size=4", 2)
    assert "\n" not in str(told.value)


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    ("function", "labels"),
    [
        (lambda x: Gelu.apply(x), {"0", "1", "2"}),
        (lambda x: Rows.apply(x), {"0", "1"}),
        (lambda x: Centred.apply(x), {"1", "2"}),
        (lambda x: Clipped.apply(x), {"0", "1", "2"}),
    ],
)
def test_parts_run_as_the_whole_where_they_were_tried(function, labels):
    """Forward and backward, on two devices."""
    assert check(function, real(4, 6, 8)) == labels


def test_a_change_in_place_stays_whole():
    _, rules = traced(lambda x: Doubled.apply(x * 1), real(4, 6))
    assert not rules[1].extents


def test_numbers_that_are_none_prove_nothing():
    _, (rule,) = traced(lambda x: Angles.apply(x), real(4, 6, 8))
    assert set(rule.extents) == {"0", "2"}


def test_what_is_too_large_is_tried_at_smaller_sizes():
    _, (rule,) = traced(
        lambda x: Gelu.apply(x), torch.ones(2, 1 << 10, 1 << 10, requires_grad=True)
    )
    assert set(rule.extents) == {"0", "1", "2"}


def test_torchs_own_functions_are_none():
    x = torch.ones(2, requires_grad=True)
    with user_functions() as found:
        torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True)
        Gelu.apply(x)
    assert [call.words for call in found] == ["autograd function Gelu"]
