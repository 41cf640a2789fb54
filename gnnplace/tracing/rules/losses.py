"""Rules of losses: along the batch; a mean is a sum divided by what one device would divide by.

A cross entropy of scores whose classes are cut (Megatron's, Shoeybi et al., 2019, 1909.08053): with
the largest score m and the sum of exp(score - m) over all parts every part knows log-sum-exp, and
the part that has the target adds log-sum-exp minus the target's score. Two exchanges of a number a
row forward, none backward, where a gradient is softmax minus target. The log-sum-exp of a z-loss
(PaLM, arXiv 2204.02311) is split in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gnnplace.torch_names import FunctionContext
from gnnplace.tracing.calls import LayerCall
from gnnplace.tracing.rules import Exchanged
from gnnplace.tracing.rules.elementwise import (
    broadcast,
    extreme,
    find_reduced_axes,
    list_remaining_axes,
)
from gnnplace.tracing.rules.rule import (
    Axes,
    Case,
    Keywords,
    Operands,
    Rule,
    RuleDraft,
    Share,
    make_unsplit_rule,
    number_axes,
)

LOSS = "loss"
CLASSES = "classes"
MEAN = "mean"
SUM = "sum"
NONE = "none"


def classification(case: Case) -> Rule:
    """Split `cross_entropy` and `nll_loss`; the first along classes, too, but for their weights.

    The mean is over the targets that count: not ignored, each with its class's weight.
    """
    scores = case.shapes[0]
    target = case.shapes[1]
    if len(scores) < 2 or _reduction(case.call, 6) not in (MEAN, SUM, NONE):
        return make_unsplit_rule(case, "a loss of one example")
    axes = number_axes(len(scores), 1)
    target_axes: Axes = axes if target == scores else (axes[0], *axes[2:])
    if target == scores and _reduction(case.call, 6) == MEAN:
        return _split_counted_mean(case, axes, [0, 1])
    draft = RuleDraft(case)
    splits_classes = case.call.kind == "cross_entropy" and target != scores
    draft.read(0, (axes[0], CLASSES, *axes[2:]) if splits_classes else axes)
    draft.read(1, target_axes)
    kind = _reduction(case.call, 6)
    result: Axes = (axes[0], *axes[2:]) if kind == NONE else ()
    if splits_classes:
        sums = {CLASSES: Exchanged(math.prod(target))}
    else:
        sums = {}
    return draft.rule(
        LOSS, result, run=_sum_over_count if kind == MEAN else _sum_part, exchanges=sums
    )


def _sum_part(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> torch.Tensor:
    """Return a part's sum, or losses of its rows."""
    if share.parts(CLASSES) == 1:
        return call.function(*args, **kwargs)
    losses = _rows(call, args, kwargs, share)
    if _reduction(call, 6) == NONE:
        return losses
    return losses.sum()


def _rows(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> torch.Tensor:
    """Return a part's shares of the losses of rows, if classes are cut."""
    if len(args) > 1:
        target = args[1]
    else:
        target = kwargs["target"]
    ignored = call.argument(4, "ignore_index", -100)
    smoothing = call.argument(7, "label_smoothing", 0.0)
    if len(args) > 2:
        weight = args[2]
    else:
        weight = kwargs.get("weight")
    losses: torch.Tensor = _ShareOfClasses.apply(
        args[0], target, weight, ignored, smoothing, share
    )
    return losses


def log_sum_exp(
    scores: torch.Tensor, axis: int, share: Share, label: str
) -> torch.Tensor:
    """Return log-sum-exp along an axis whose parts other devices have; without a gradient."""
    local = torch.logsumexp(scores, axis)
    largest = share.largest(local, label)
    largest = largest.where(largest.isfinite(), 0.0)
    return largest + share.total((local - largest).exp(), label).log()


class _LossContext(FunctionContext):
    """The state that `_ShareOfClasses` keeps for its backward pass.

    Attributes:
        is_smooth: Whether there is label smoothing.
        smoothing_weight: Smoothing of one class, times the sum of all classes' weights.
    """

    is_smooth: bool
    smoothing_weight: torch.Tensor


class _ShareOfClasses(torch.autograd.Function):
    """Every row's share of log-sum-exp minus its target's score, for a part of the classes.

    With weights w and smoothing e of C classes a row's loss is (1 - e) w_y (lse - s_y) + e / C sum
    of w_c (lse - s_c): a part adds the first term if it has the target, and its classes of the sum.
    """

    @staticmethod
    def forward(
        ctx: _LossContext,
        scores: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignored: int,
        smoothing: float,
        share: Share,
    ) -> torch.Tensor:
        """Return rows' shares of their losses. [N, ...]

        Args:
            ctx: Keeps tensors for the backward pass.
            scores: Scores of this part's classes. [N, C, ...]
            target: Classes, counted over all parts. [N, ...]
            weight: Weights of all classes; None: 1.
            ignored: The target that does not count.
            smoothing: Label smoothing.
            share: The part of this device.
        """
        log_sum = log_sum_exp(scores, 1, share, CLASSES)
        num_classes = scores.shape[1]
        first = share.index(CLASSES) * num_classes
        counts = target != ignored
        has_target = counts & (target >= first) & (target < first + num_classes)
        column = (target - first).where(has_target, 0).unsqueeze(1)
        all_classes = share.parts(CLASSES) * num_classes
        smoothing_per_class = smoothing / all_classes
        if weight is None:
            weight = scores.new_ones(all_classes)

        # The term of the target, of the part that has it.
        target_weight = (1 - smoothing) * weight[target.where(counts, 0)].where(
            counts, 0
        )
        target_score = scores.gather(1, column).squeeze(1)
        losses = (target_weight * (log_sum - target_score)).where(has_target, 0)

        # The term of smoothing, of this part's classes.
        local_weights = smoothing_per_class * weight[first : first + num_classes]
        local_weights = local_weights.view(1, -1, *[1] * (scores.dim() - 2))
        if smoothing:
            smoothed = local_weights.sum() * log_sum - (local_weights * scores).sum(1)
            losses = losses + smoothed.where(counts, 0)
        ctx.save_for_backward(
            scores, log_sum, column, has_target, counts, target_weight, local_weights
        )
        ctx.is_smooth = smoothing > 0
        ctx.smoothing_weight = smoothing_per_class * weight.sum()
        return losses

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _LossContext, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Return softmax times a row's weights, minus those of its classes, times its gradient."""
        (gradient,) = gradients
        scores, log_sum, column, has_target, counts, target_weight, local_weights = (
            ctx.saved_tensors
        )
        row_gradient = gradient.where(counts, 0).unsqueeze(1)
        row_weight = (target_weight + ctx.smoothing_weight).unsqueeze(1)
        result = (scores - log_sum.unsqueeze(1)).exp_().mul_(row_weight)
        if ctx.is_smooth:
            result = result.sub_(local_weights)
        at_target = target_weight.where(has_target, 0).unsqueeze(1)
        result = result.scatter_add_(1, column, -at_target).mul_(row_gradient)
        return result, None, None, None, None, None


class _LogSumContext(FunctionContext):
    """The axis of the sum, which `_ShareOfLogSum` keeps for its backward pass."""

    axis: int


class _ShareOfLogSum(torch.autograd.Function):
    """A part's equal share of a log-sum-exp along an axis that is cut."""

    @staticmethod
    def forward(
        ctx: _LogSumContext, scores: torch.Tensor, axis: int, share: Share, label: str
    ) -> torch.Tensor:
        """Return the share; it has no such axis."""
        log_sum = log_sum_exp(scores, axis, share, label)
        ctx.save_for_backward(scores, log_sum)
        ctx.axis = axis
        return log_sum / share.parts(label)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _LogSumContext, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Return softmax times the gradient."""
        (gradient,) = gradients
        scores, log_sum = ctx.saved_tensors
        softmax = (scores - log_sum.unsqueeze(ctx.axis)).exp_()
        return softmax.mul_(gradient.unsqueeze(ctx.axis)), None, None, None


def log_sum(case: Case) -> Rule:
    """Split `logsumexp`, as of z-loss; along one axis parts exchange what a cross entropy's do."""
    rank = len(case.shapes[0])
    reduced, keeps_axis = find_reduced_axes(case, rank)
    if len(reduced) != 1:
        return extreme(case)
    axes = number_axes(rank)
    label = axes[reduced[0]] or ""
    draft = case.reads(axes)

    def run(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> torch.Tensor:
        if share.parts(label) == 1:
            return call.function(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        result: torch.Tensor = _ShareOfLogSum.apply(scores, reduced[0], share, label)
        if keeps_axis:
            return result.unsqueeze(reduced[0])
        return result

    sums = {
        label: Exchanged(
            math.prod(case.shapes[0]) // max(case.shapes[0][reduced[0]], 1)
        )
    }
    return draft.rule(
        LOSS, list_remaining_axes(axes, reduced, keeps_axis), run=run, exchanges=sums
    )


def _sum_over_count(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> torch.Tensor:
    """Return a part's sum over the count of all parts; it may differ from part to part."""
    labels = [label for label in ("0", "2", "3", "4") if share.parts(label) > 1]
    splits_classes = share.parts(CLASSES) > 1
    if not labels and not splits_classes:
        return call.function(*args, **kwargs)
    if len(args) > 1:
        target = args[1]
    else:
        target = kwargs["target"]
    if len(args) > 2:
        weight = args[2]
    else:
        weight = kwargs.get("weight")
    counts = target != call.argument(4, "ignore_index", -100)
    weights = counts.to(torch.float64)
    if weight is not None:
        weights = weight[target.where(counts, 0)].double() * weights
    total = weights.sum()
    for label in labels:
        total = share.total(total, label)
    if splits_classes:
        loss_sum = _rows(call, args, kwargs, share).sum()
    else:
        loss_sum = call.function(*args[:3], **_with_sum(call, args, kwargs))
    return loss_sum / total.to(loss_sum.dtype)


def _with_sum(call: LayerCall, args: Operands, kwargs: Keywords) -> Keywords:
    """Return the keywords of a call from the fourth argument on, with the reduction "sum"."""
    names = (
        "input",
        "target",
        "weight",
        "size_average",
        "ignore_index",
        "reduce",
        "reduction",
        "label_smoothing",
    )
    keywords = dict(zip(names[3:], args[3:], strict=False)) | kwargs
    keywords = {name: value for name, value in keywords.items() if value is not None}
    return {**keywords, "reduction": SUM}


def comparison(position: int) -> Callable[[Case], Rule]:
    """Return the rule of `mse_loss` and its kin: along every axis.

    Args:
        position: The position of the argument `reduction`.
    """

    def rule(case: Case) -> Rule:
        kind = _reduction(case.call, position)
        if kind not in (MEAN, SUM, NONE) or case.shapes[0] != case.shapes[1]:
            return make_unsplit_rule(
                case, f"reduction {kind!r}, or shapes that are broadcast"
            )
        if (
            kind == MEAN
            and len(case.shapes) > 2
            and case.call.kind in ("mse_loss", "l1_loss")
        ):
            return make_unsplit_rule(case, "a mean over weights")
        axes = number_axes(len(case.shapes[0]))
        draft = RuleDraft(case)
        for slot, shape in enumerate(case.shapes):  # with weights, where it has some
            draft.read(slot, broadcast(shape, case.shapes[0], axes))
        if kind == MEAN:
            return draft.rule(LOSS, (), run=_make_scaled_runner(axes))
        return draft.rule(LOSS, axes if kind == NONE else ())

    return rule


def _split_counted_mean(case: Case, axes: Axes, slots: list[int]) -> Rule:
    """Split a mean whose count is known from the shapes."""
    draft = RuleDraft(case)
    for slot in slots:
        draft.read(slot, axes)
    return draft.rule(LOSS, (), run=_make_scaled_runner(axes))


def _make_scaled_runner(axes: Axes) -> Callable[..., torch.Tensor]:
    """Return the runner of a mean over all axes."""

    def run(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> torch.Tensor:
        result = call.function(*args, **kwargs)
        for label in axes:
            if label is not None and share.parts(label) > 1:
                result = result / share.parts(label)
        return result

    return run


def _reduction(call: LayerCall, position: int) -> object:
    """Return the reduction of a loss."""
    return call.argument(position, "reduction", MEAN)


def alignment(case: Case) -> Rule:
    """Split `ctc_losses` along the examples, if their targets are padded."""
    log_probs, targets = case.shapes[:2]
    if len(targets) != 2 or targets[0] != log_probs[1]:
        return make_unsplit_rule(case, "targets of all examples in one row")
    draft = RuleDraft(case)
    draft.read(0, (None, "0", None))
    draft.read(1, ("0", None))
    draft.read(2, (None, "0"))
    draft.read(case.slot(3, "mask"), ("0", None))
    return draft.rule(LOSS, ("0",))


LOSS_RULES: dict[str, Callable[[Case], Rule]] = {
    "cross_entropy": classification,
    "ctc_losses": alignment,
    "logsumexp": log_sum,
    "nll_loss": classification,
    "mse_loss": comparison(4),
    "l1_loss": comparison(4),
    "smooth_l1_loss": comparison(4),
    "huber_loss": comparison(2),
    "binary_cross_entropy": comparison(5),
    "binary_cross_entropy_with_logits": comparison(5),
}
