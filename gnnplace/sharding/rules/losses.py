"""Rules of losses: along the batch; a mean is a sum divided by what one device would divide by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnplace.sharding.captured.calls import LayerCall
from gnnplace.sharding.rules.rule import Axes, Case, Rule, RuleDraft, Share, numbered, whole

LOSS = "loss"
MEAN, SUM, NONE = "mean", "sum", "none"


def classification(case: Case) -> Rule:
    """`cross_entropy` and `nll_loss`: the classes stay whole.

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
    draft.read(0, axes)
    draft.read(1, chosen)
    kind = _reduction(case.call, 6)
    made: Axes = (axes[0], *axes[2:]) if kind == NONE else ()
    return draft.rule(LOSS, made, run=_counted if kind == MEAN else None)


def _counted(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
    """A part's sum over the whole's count: it may differ from part to part."""
    labels = [label for label in ("0", "2", "3", "4") if share.parts(label) > 1]
    if not labels:
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
