"""Rules of losses: along the batch; a mean is a sum divided by what one device would divide by.

A cross entropy of scores whose classes are cut (Megatron's, Shoeybi et al., 2019, 1909.08053): with
the largest score m and the sum of exp(score - m) over all parts every part knows log-sum-exp, and
the part that has the target adds what it is above the target's score. Two exchanges of a number a
row forward, none backward, where a gradient is softmax minus target. The log-sum-exp of a z-loss
(PaLM, arXiv 2204.02311) is made likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gnnplace.tracing.calls import LayerCall
from gnnplace.tracing.rules import Exchanged
from gnnplace.tracing.rules.elementwise import broadcast, extreme, left_axes, reduced_axes
from gnnplace.tracing.rules.rule import Axes, Case, Rule, RuleDraft, Share, numbered, whole

LOSS, CLASSES = "loss", "classes"
MEAN, SUM, NONE = "mean", "sum", "none"


def classification(case: Case) -> Rule:
    """`cross_entropy` and `nll_loss`; classes can be cut in `cross_entropy`, their weights stay.

    The mean is over the targets that count: not ignored, each with its class's weight.
    """
    scores, target = case.shapes[0], case.shapes[1]
    if len(scores) < 2 or _reduction(case.call, 6) not in (MEAN, SUM, NONE):
        return whole(case, "a loss of one example")
    axes = numbered(len(scores), 1)
    chosen: Axes = axes if target == scores else (axes[0], *axes[2:])
    if target == scores and _reduction(case.call, 6) == MEAN:
        return _by_count(case, axes, [0, 1])
    draft = RuleDraft(case)
    cut = case.call.kind == "cross_entropy" and target != scores
    draft.read(0, (axes[0], CLASSES, *axes[2:]) if cut else axes)
    draft.read(1, chosen)
    kind = _reduction(case.call, 6)
    made: Axes = (axes[0], *axes[2:]) if kind == NONE else ()
    sums = {CLASSES: Exchanged(math.prod(target))} if cut else {}
    return draft.rule(LOSS, made, run=_counted if kind == MEAN else _added, exchanges=sums)


def _added(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
    """A part's sum, or losses of its rows."""
    if share.parts(CLASSES) == 1:
        made: torch.Tensor = call.function(*args, **kwargs)
        return made
    found = _rows(call, args, kwargs, share)
    return found if _reduction(call, 6) == NONE else found.sum()


def _rows(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
    """Shares of the losses of rows, where classes are cut."""
    target = args[1] if len(args) > 1 else kwargs["target"]
    ignored = call.argument(4, "ignore_index", -100)
    smoothing = call.argument(7, "label_smoothing", 0.0)
    weight = args[2] if len(args) > 2 else kwargs.get("weight")
    found: torch.Tensor = _ShareOfClasses.apply(args[0], target, weight, ignored, smoothing, share)
    return found


def log_sum_exp(scores: torch.Tensor, axis: int, share: Share, label: str) -> torch.Tensor:
    """Log-sum-exp along an axis whose parts other devices have; without a gradient."""
    own = torch.logsumexp(scores, axis)
    most = share.largest(own, label)
    most = most.where(most.isfinite(), 0.0)
    return most + share.total((own - most).exp(), label).log()


class _ShareOfClasses(torch.autograd.Function):
    """Every row's share of what log-sum-exp is above its target's score, of a part of the classes.

    With weights w and smoothing e of C classes a row's loss is (1 - e) w_y (lse - s_y) + e / C sum
    of w_c (lse - s_c): a part adds the first term if the target is its own, and its own of the sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignored: int,
        smoothing: float,
        share: Share,
    ) -> torch.Tensor:
        """Rows' shares; scores [N, C, ...], target and result [N, ...], weight [all classes]."""
        whole = log_sum_exp(scores, 1, share, CLASSES)
        count, first = scores.shape[1], share.index(CLASSES) * scores.shape[1]
        counts = target != ignored
        here = counts & (target >= first) & (target < first + count)
        place = (target - first).where(here, 0).unsqueeze(1)
        each = smoothing / (share.parts(CLASSES) * count)
        if weight is None:
            weight = scores.new_ones(share.parts(CLASSES) * count)
        worth = (1 - smoothing) * weight[target.where(counts, 0)].where(counts, 0)
        own = (each * weight[first : first + count]).view(1, -1, *[1] * (scores.dim() - 2))
        score = scores.gather(1, place).squeeze(1)
        made = (worth * (whole - score)).where(here, 0)
        if smoothing:
            made = made + (own.sum() * whole - (own * scores).sum(1)).where(counts, 0)
        ctx.save_for_backward(scores, whole, place, here, counts, worth, own)
        ctx.smooth, ctx.every = smoothing > 0, each * weight.sum()
        return made

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:  # type: ignore[override]
        """Softmax times a row's weights, minus those of its own classes, times its gradient."""
        scores, whole, place, here, counts, worth, own = ctx.saved_tensors
        rows = given[0].where(counts, 0).unsqueeze(1)
        made = (scores - whole.unsqueeze(1)).exp_().mul_((worth + ctx.every).unsqueeze(1))
        made = made.sub_(own) if ctx.smooth else made
        target = worth.where(here, 0).unsqueeze(1)
        made = made.scatter_add_(1, place, -target).mul_(rows)
        return made, None, None, None, None, None


class _ShareOfLogSum(torch.autograd.Function):
    """A part's equal share of a log-sum-exp along an axis that is cut."""

    @staticmethod
    def forward(
        ctx: Any, scores: torch.Tensor, axis: int, share: Share, label: str
    ) -> torch.Tensor:
        """Scores without the axis."""
        whole = log_sum_exp(scores, axis, share, label)
        ctx.save_for_backward(scores, whole)
        ctx.axis = axis
        return whole / share.parts(label)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:  # type: ignore[override]
        """Softmax, times the gradient of the whole."""
        scores, whole = ctx.saved_tensors
        made = (scores - whole.unsqueeze(ctx.axis)).exp_()
        return made.mul_(given[0].unsqueeze(ctx.axis)), None, None, None


def log_sum(case: Case) -> Rule:
    """`logsumexp`, as of z-loss: along one axis parts exchange what a cross entropy's do."""
    rank = len(case.shapes[0])
    gone, keep = reduced_axes(case, rank)
    if len(gone) != 1:
        return extreme(case)
    axes = numbered(rank)
    label = axes[gone[0]] or ""
    draft = case.reads(axes)

    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
        if share.parts(label) == 1:
            return call.function(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        made: torch.Tensor = _ShareOfLogSum.apply(scores, gone[0], share, label)
        return made.unsqueeze(gone[0]) if keep else made

    sums = {label: Exchanged(math.prod(case.shapes[0]) // max(case.shapes[0][gone[0]], 1))}
    return draft.rule(LOSS, left_axes(axes, gone, keep), run=run, exchanges=sums)


def _counted(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
    """A part's sum over the whole's count: it may differ from part to part."""
    labels = [label for label in ("0", "2", "3", "4") if share.parts(label) > 1]
    cut = share.parts(CLASSES) > 1
    if not labels and not cut:
        return call.function(*args, **kwargs)
    target = args[1] if len(args) > 1 else kwargs["target"]
    weight = args[2] if len(args) > 2 else kwargs.get("weight")
    counts = target != call.argument(4, "ignore_index", -100)
    each = counts.to(torch.float64)
    if weight is not None:
        each = weight[target.where(counts, 0)].double() * each
    total = each.sum()
    for label in labels:
        total = share.total(total, label)
    if cut:
        summed = _rows(call, args, kwargs, share).sum()
    else:
        summed = call.function(*args[:3], **_with_sum(call, args, kwargs))
    return summed / total.to(summed.dtype)


def _with_sum(call: LayerCall, args: Any, kwargs: Any) -> dict[str, Any]:
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
    given = dict(zip(names[3:], args[3:], strict=False)) | kwargs
    return {**{k: v for k, v in given.items() if v is not None}, "reduction": SUM}


def comparison(position: int) -> Callable[[Case], Rule]:
    """`mse_loss` and its kin: along every axis.

    Args:
        position: The position of the argument `reduction`.
    """

    def rule(case: Case) -> Rule:
        kind = _reduction(case.call, position)
        if kind not in (MEAN, SUM, NONE) or case.shapes[0] != case.shapes[1]:
            return whole(case, f"reduction {kind!r}, or shapes that are broadcast")
        if kind == MEAN and len(case.shapes) > 2 and case.call.kind in ("mse_loss", "l1_loss"):
            return whole(case, "a mean over weights")
        axes, draft = numbered(len(case.shapes[0])), RuleDraft(case)
        for slot, shape in enumerate(case.shapes):  # with weights, where it has some
            draft.read(slot, broadcast(shape, case.shapes[0], axes))
        if kind == MEAN:
            return draft.rule(LOSS, (), run=_scaled(axes))
        return draft.rule(LOSS, axes if kind == NONE else ())

    return rule


def _by_count(case: Case, axes: Axes, slots: list[int]) -> Rule:
    """Means whose count is known from the shapes."""
    draft = RuleDraft(case)
    for slot in slots:
        draft.read(slot, axes)
    return draft.rule(LOSS, (), run=_scaled(axes))


def _scaled(axes: Axes) -> Callable[..., torch.Tensor]:
    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
        result = call.function(*args, **kwargs)
        for label in axes:
            if label is not None and share.parts(label) > 1:
                result = result / share.parts(label)
        return result

    return run


def _reduction(call: LayerCall, position: int) -> Any:
    return call.argument(position, "reduction", MEAN)


def alignment(case: Case) -> Rule:
    """`ctc_losses`: along the examples, whose targets are padded."""
    log_probs, targets = case.shapes[:2]
    if len(targets) != 2 or targets[0] != log_probs[1]:
        return whole(case, "targets of all examples in one row")
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
