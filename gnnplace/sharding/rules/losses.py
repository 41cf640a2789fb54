"""Rules of losses: along the batch; a mean is a sum divided by what one device would divide by.

A cross entropy of scores whose classes are cut (Megatron's, Shoeybi et al., 2019, 1909.08053): with
the largest score m and the sum of exp(score - m) over all parts every part knows log-sum-exp, and
adds its share of it minus the target's score, if that is its own. Two exchanges of a number a row
forward, none backward, where a gradient is softmax minus target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gnnplace.sharding.captured.calls import LayerCall
from gnnplace.sharding.captured.layout import Exchanged
from gnnplace.sharding.rules.rule import Axes, Case, Rule, RuleDraft, Share, numbered, whole

LOSS, CLASSES = "loss", "classes"
MEAN, SUM, NONE = "mean", "sum", "none"


def classification(case: Case) -> Rule:
    """`cross_entropy` and `nll_loss`; classes can be cut in `cross_entropy` without weights.

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
    weighted = case.slot(2, "weight") is not None
    cut = case.call.kind == "cross_entropy" and target != scores and not weighted
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
    found: torch.Tensor = _ShareOfClasses.apply(args[0], target, ignored, smoothing, share)
    return found


class _ShareOfClasses(torch.autograd.Function):
    """Every row's share of log-sum-exp minus the target's score, of a part of the classes."""

    @staticmethod
    def forward(
        ctx: Any, scores: torch.Tensor, target: torch.Tensor, ignored: int, smoothing: float,
        share: Share,
    ) -> torch.Tensor:  # fmt: skip
        """Rows' shares; scores [N, C, ...], target and result [N, ...]."""
        own = torch.logsumexp(scores, 1)
        most = share.largest(own, CLASSES)
        whole = most + share.total((own - most).exp(), CLASSES).log()
        counts = target != ignored
        place = target - share.index(CLASSES) * scores.shape[1]
        here = counts & (place >= 0) & (place < scores.shape[1])
        place = place.where(here, 0).unsqueeze(1)
        parts = share.parts(CLASSES)
        score = scores.gather(1, place).squeeze(1).where(here, 0)
        made = whole / parts - (1 - smoothing) * score
        ctx.each = smoothing / (parts * scores.shape[1])
        if smoothing:
            made = made - ctx.each * scores.sum(1)
        ctx.save_for_backward(scores, whole, place, here, counts)
        ctx.smoothing = smoothing
        return made.where(counts, 0)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:  # type: ignore[override]
        """Softmax minus target, times the gradient of each row."""
        scores, whole, place, here, counts = ctx.saved_tensors
        rows = given[0].where(counts, 0).unsqueeze(1)
        made = (scores - whole.unsqueeze(1)).exp_()
        made = made.sub_(ctx.each) if ctx.smoothing else made
        target = here.unsqueeze(1).to(made.dtype) * (1 - ctx.smoothing)
        return made.scatter_add_(1, place, -target).mul_(rows), None, None, None, None


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
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction",
             "label_smoothing")  # fmt: skip
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
        axes = numbered(len(case.shapes[0]))
        if kind == MEAN:
            return _by_count(case, axes, [0, 1])
        draft = RuleDraft(case)
        draft.read(0, axes)
        draft.read(1, axes)
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


LOSS_RULES: dict[str, Callable[[Case], Rule]] = {
    "cross_entropy": classification,
    "nll_loss": classification,
    "mse_loss": comparison(4),
    "l1_loss": comparison(4),
    "smooth_l1_loss": comparison(4),
    "huber_loss": comparison(2),
    "binary_cross_entropy": comparison(5),
    "binary_cross_entropy_with_logits": comparison(5),
}
