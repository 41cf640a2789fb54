"""Rules of normalisations."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gnnplace.tracing.calls import LayerCall
from gnnplace.tracing.rules import Exchanged
from gnnplace.tracing.rules.rule import (
    Case,
    Keywords,
    Operands,
    Rule,
    Share,
    make_unsplit_rule,
    number_axes,
)

NORM = "norm"
BATCH = "0"
CHANNELS = "channels"


def layer_norm(case: Case) -> Rule:
    """Split `layer_norm` and `rms_norm` along axes that are not normalised over."""
    rank = len(case.shapes[0])
    over = len(case.call.argument(1, "normalized_shape"))
    axes = number_axes(rank, *range(rank - over, rank))
    return case.reads(axes).rule(NORM, *[axes] * len(case.results))


def make_example_rule(
    min_rank: int, slots: int = 1, kind: str = NORM
) -> Callable[[Case], Rule]:
    """Return the rule of calls that keep examples apart, along the first axis.

    Args:
        min_rank: Axes that a tensor has if its first is the batch.
        slots: How many of the tensors read have the batch.
        kind: The kind of the call, for people.
    """

    def rule(case: Case) -> Rule:
        if len(case.shapes[0]) < min_rank:
            return make_unsplit_rule(case, "a tensor without a batch")
        reads = [(BATCH, *[None] * (len(shape) - 1)) for shape in case.shapes[:slots]]
        results = [(BATCH, *[None] * (len(shape) - 1)) for shape in case.results]
        return case.reads(*reads).rule(kind, *results)

    return rule


def batch_norm(case: Case) -> Rule:
    """Split batch norm along channels and batch; the parts of a batch add up their sums."""
    training = case.call.argument(5, "training", False)
    axes = (BATCH, CHANNELS, *(None,) * (len(case.shapes[0]) - 2))
    if len(axes) != len(case.shapes[0]):
        return make_unsplit_rule(case, "batch norm without channels")
    draft = case.reads(axes)
    names = ("running_mean", "running_var", "weight", "bias")
    for position, name in enumerate(names, start=1):
        changed = training and position < 3
        slot = case.slot(position, name)
        if not changed:
            draft.read(slot, (CHANNELS,))
        elif slot is not None:  # every device keeps the whole of what it changes
            draft.extents[CHANNELS] = 1
    if not training:
        return draft.rule(NORM, axes)
    sums = {BATCH: Exchanged(2 * case.shapes[0][1])}
    return draft.rule(NORM, axes, run=_synchronise, exchanges=sums)


def _synchronise(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> torch.Tensor:
    """Run batch norm over the batch of all devices (Ioffe and Szegedy, 2015, arXiv 1502.03167)."""
    if share.parts(BATCH) == 1:
        return call.function(*args, **kwargs)
    arguments = dict(zip(_NAMES, args, strict=False)) | kwargs
    x = arguments["input"]
    over = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    mean, variance = _moments(x, over, share)
    count = x.numel() // x.shape[1] * share.parts(BATCH)
    _keep_statistics(
        arguments, mean.detach(), variance.detach() * count / max(1, count - 1)
    )
    centred = x - mean.view(shape)
    weight = arguments.get("weight")
    bias = arguments.get("bias")
    y = centred * torch.rsqrt(variance + arguments.get("eps", 1e-5)).view(shape)
    y = y if weight is None else y * weight.view(shape)
    if bias is None:
        return y
    return y + bias.view(shape)


def _moments(
    values: torch.Tensor, over: list[int], share: Share
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance over all devices from those of each, exchanged once. [channels]"""
    moments = torch.stack([values.mean(over), values.var(over, correction=0)])
    count = share.parts(BATCH)
    index = share.index(BATCH)
    # Every device has its moments in a row of its own, so that the sum has them all.
    rows = torch.nn.functional.pad(
        moments[None], (0, 0, 0, 0, index, count - 1 - index)
    )
    means, variances = share.total(rows, BATCH).unbind(1)
    mean = means.mean(0)
    return mean, (variances + (means - mean).square()).mean(0)


def _keep_statistics(
    arguments: Keywords, mean: torch.Tensor, variance: torch.Tensor
) -> None:
    """Move the running averages towards a batch's mean and variance, in place."""
    momentum = arguments.get("momentum", 0.1)
    for name, value in (("running_mean", mean), ("running_var", variance)):
        if arguments.get(name) is not None:
            arguments[name].mul_(1 - momentum).add_(value, alpha=momentum)


_NAMES = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "training",
    "momentum",
    "eps",
)
NORM_RULES: dict[str, Callable[[Case], Rule]] = {
    **dict.fromkeys(
        ("layer_norm", "rms_norm", "native_layer_norm", "_fused_rms_norm"), layer_norm
    ),
    "group_norm": make_example_rule(2),
    "batch_norm": batch_norm,
}
