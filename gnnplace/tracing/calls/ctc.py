"""Connectionist temporal classification as one call, for capture, sharding and plans.

Torch's own loss (Graves et al., 2006) reads the numbers of its lengths, and saves tensors for the
backward pass whose shapes depend on them; but a step is recorded on tensors without numbers. Here
the losses of the examples are one op whose result shapes follow from those of its operands. It
reads the lengths when it runs, and runs torch's own forward pass again in the backward pass. The
mean over lengths is computed by calls of torch, as torch does it.

Libraries give the letters of all examples in one row, by `labels.masked_select(mask)`, whose
length depends on numbers too. Such a row is a stand-in (`SelectedRow`), which nothing but this loss
can read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from gnnplace.errors import CaptureError

Tensor = torch.Tensor
_FORWARD, _BACKWARD = (
    getattr(torch.ops.aten, name) for name in ("_ctc_loss", "_ctc_loss_backward")
)
Lengths = Tensor | Sequence[int] | int
_SELECTION = "_gnnplace_selection"
"""Attribute of a tensor that stands for a selection."""


class SelectedRow(NamedTuple):
    """A row of the entries of a tensor that a mask selects, whose number is not known.

    Attributes:
        entries: The tensor.
        mask: The mask, of the same shape.
        place: Where the code selects, as " at FILE:LINE".
    """

    entries: Tensor
    mask: Tensor
    place: str

    def stand_in(self) -> Tensor:
        """Return a tensor that stands for the row, with room for all entries."""
        row = self.entries.reshape(-1).clone()
        setattr(row, _SELECTION, self)
        return row


def find_selection(tensor: Tensor) -> SelectedRow | None:
    """Return the selection that a tensor stands for, if it does."""
    attributes = getattr(tensor, "__dict__", {})  # what is no tensor may have none
    selection: SelectedRow | None = attributes.get(_SELECTION)
    return selection


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the loss that `torch.nn.functional.ctc_loss` returns.

    Args:
        log_probs: Logarithms of probabilities. [T, N, C] or [T, C]
        targets: Labels, padded [N, S], or those of all examples in one row.
        input_lengths: Steps of each example. [N]
        target_lengths: Labels of each example. [N]
        blank: The class that is no label.
        reduction: "none", "mean" over labels and then examples, or "sum".
        zero_infinity: Whether an example that cannot be aligned counts as 0.

    Raises:
        CaptureError: Another reduction, or half precision, in which torch has no such loss.
    """
    if reduction not in ("none", "mean", "sum"):
        raise CaptureError(
            f"ctc_loss: reduction {reduction!r}; use 'none', 'mean' or 'sum'"
        )
    if torch.is_autocast_enabled(log_probs.device.type):
        log_probs = log_probs.float()
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise CaptureError(
            "ctc_loss: torch has none in half precision; give it log_probs.float()"
        )
    selection = find_selection(targets)
    mask = None if selection is None else selection.mask
    labels = targets if selection is None else selection.entries
    steps, letters = (
        torch.as_tensor(x, device=log_probs.device).reshape(-1)
        for x in (input_lengths, target_lengths)
    )
    is_batch = log_probs.dim() == 3
    if not is_batch:
        log_probs = log_probs.unsqueeze(1)
    losses: Tensor = torch.ops.gnnplace.ctc_losses(
        log_probs, labels, torch.stack((steps, letters)), mask, blank, zero_infinity
    )
    if zero_infinity:
        losses = torch.where(losses == math.inf, 0.0, losses)
    if reduction == "mean":
        return (losses / letters.clamp(min=1).to(losses.dtype)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if is_batch else losses.squeeze(0)


class _Result(NamedTuple):
    """The results of torch's forward pass, and its arguments.

    Attributes:
        losses: Losses of each example. [N]
        alpha: What it keeps for the backward pass.
        labels: The targets, as torch takes them.
        lengths: Steps of each example, and labels of each.
    """

    losses: Tensor
    alpha: Tensor
    labels: Tensor
    lengths: list[list[int]]


def _run(
    log_probs: Tensor,
    targets: Tensor,
    lengths: Tensor,
    mask: Tensor | None,
    options: tuple[int, bool],
) -> _Result:
    """Run torch's forward pass, with the numbers of its lengths."""
    if mask is None:
        labels = targets
    else:
        labels = targets.masked_select(mask)
    numbers = lengths.tolist()
    losses, alpha = _FORWARD(log_probs, labels, *numbers, *options)
    return _Result(losses, alpha, labels, numbers)


@torch.library.custom_op("gnnplace::ctc_losses", mutates_args=())
def _losses(
    log_probs: Tensor,
    targets: Tensor,
    lengths: Tensor,
    mask: Tensor | None,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    return _run(log_probs, targets, lengths, mask, (blank, zero_infinity)).losses


@_losses.register_fake
def _(
    log_probs: Tensor,
    targets: object,
    lengths: object,
    mask: object,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@torch.library.custom_op("gnnplace::ctc_losses_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    lengths: Tensor,
    mask: Tensor | None,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    options = blank, zero_infinity
    result = _run(log_probs, targets, lengths, mask, options)
    scores_gradient: Tensor = _BACKWARD(
        gradient,
        log_probs,
        result.labels,
        *result.lengths,
        result.losses,
        result.alpha,
        *options,
    )
    return scores_gradient.contiguous()


@_backward.register_fake
def _(
    gradient: object,
    log_probs: Tensor,
    targets: object,
    lengths: object,
    mask: object,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


class _Context(Protocol):
    """The state that torch keeps between the passes of a call."""

    saved_tensors: tuple[Tensor | None, ...]
    options: tuple[int, bool]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors."""


_Operands = tuple[Tensor, Tensor, Tensor, Tensor | None, int, bool]


def _setup(ctx: _Context, inputs: _Operands, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _gradients(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
    backward = torch.ops.gnnplace.ctc_losses_backward
    return backward(gradient, *ctx.saved_tensors, *ctx.options), *[None] * 5


_losses.register_autograd(_gradients, setup_context=_setup)
