"""Delayed weight gradients (the W of a zero-bubble schedule), and loss scaling.

`linear` and `addmm` are replaced by a function whose backward pass computes the gradient of its
input and queues the rest; running the queue later computes the gradients of weight and bias. The
products are those of ATen's own backward pass, in its order, so that gradients are bitwise equal
(Qi et al., 2024, arXiv 2401.10241, section 2 splits backward passes in this way; PyTorch's own
`torch.distributed.pipelining._backward` walks the graph twice instead).

Gradients in half precision are kept from vanishing by dynamic loss scaling (Micikevicius et al.,
2018, arXiv 1710.03740, section 3.2), with the constants of `torch.amp.GradScaler`: gradients that
are not finite halve the factor and skip the step; a number of steps without any doubles it. The
factor is a power of two, so that it changes no digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from gnnplace.run.split import unpack_saved
from gnnplace.torch_names import FunctionContext

QUEUED = ("linear", "addmm")
Pack = Callable[[torch.Tensor], Any]
START = 2.0**15
PATIENCE = 2000
MOST = {"16-mixed": 2.0**24, "16-master": 2.0**15}
"""By precision; with half parameters the loss is half too, and holds no more."""


@dataclass(eq=False)
class Queue:
    """Weight gradients of one micro-batch that wait."""

    waiting: list[Callable[[], None]] = field(default_factory=list)

    @torch.no_grad()
    def run(self) -> None:
        """Make all gradients that wait."""
        for make in self.waiting:
            make()
        self.waiting.clear()


def add_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to a parameter's gradient as autograd does."""
    gradient = gradient.to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = gradient.contiguous()
    else:
        parameter.grad.add_(gradient)


class _ProductContext(FunctionContext):
    """The state that a product keeps for its backward pass.

    Attributes:
        part: The packed operand; None if it is kept as it is.
        shape: The shape of x.
        leaves: The parameters of the weight and of the bias.
        transposed: Whether the product is x w^T.
        queue: Where gradients of weights wait.
    """

    part: object
    shape: torch.Size
    leaves: tuple[torch.Tensor, torch.Tensor | None]
    transposed: bool
    queue: Queue


class _Product(torch.autograd.Function):
    """x w, or x w^T, plus a bias; gradients of w and of the bias go to the queue."""

    @staticmethod
    def forward(
        ctx: _ProductContext,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        leaves: tuple[torch.Tensor, torch.Tensor | None],
        transposed: bool,
        queue: Queue,
        pack: Pack | None,
    ) -> torch.Tensor:
        packed = x if pack is None else pack(x)
        ctx.save_for_backward(weight, *([x] if packed is x else []))
        ctx.part = None if packed is x else packed
        ctx.shape = x.shape
        ctx.leaves = leaves
        ctx.transposed = transposed
        ctx.queue = queue
        if transposed:
            return functional.linear(x, weight, bias)
        assert bias is not None
        return torch.addmm(bias, x, weight)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _ProductContext, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        leaf, bias = ctx.leaves
        rows = gradient.reshape(-1, gradient.shape[-1])
        part = saved[0] if saved else ctx.part
        transposed = ctx.transposed

        def compute_weight_gradients() -> None:
            x = unpack_saved(part)  # all shards come here in the same order
            inputs = x.reshape(-1, x.shape[-1])
            if leaf.requires_grad:
                # As ATen's mm_mat2_backward: by the layout of the second factor.
                if transposed:
                    weight_gradient = rows.t().mm(inputs)
                else:
                    weight_gradient = inputs.t().mm(rows)
                add_gradient(leaf, weight_gradient)
            if bias is not None and bias.requires_grad:
                add_gradient(bias, rows.sum(0))

        ctx.queue.waiting.append(compute_weight_gradients)
        bias_gradient = None
        if ctx.needs_input_grad[2]:  # of a bias that is no leaf
            bias_gradient = rows.sum(0)
        input_gradient = None
        if ctx.needs_input_grad[0]:
            if transposed:
                factor = weight
            else:
                factor = weight.t()
            input_gradient = rows.mm(factor).view(ctx.shape)
        return input_gradient, None, bias_gradient, None, None, None, None


def product(
    kind: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    queue: Queue,
    pack: Pack | None = None,
) -> torch.Tensor | None:
    """Compute a product whose weight gradients wait; return None if it is not of that form.

    Args:
        kind: "linear" or "addmm".
        args: the positional arguments of the call.
        kwargs: the arguments that it gets by name.
        queue: The queue that gets the gradients.
        pack: Packs what the backward pass reads later; see `run.split.unpack_saved`.
    """
    if kind == "linear":
        x, weight, bias = _bound(("input", "weight", "bias"), args, kwargs)
    elif kwargs:
        return None
    else:
        bias, x, weight = args
        if bias.dim() != 1 or not weight.is_contiguous():
            return None
    if not (weight.is_leaf and weight.requires_grad and torch.is_grad_enabled()):
        return None
    if not x.requires_grad:
        return None
    leaves = (weight, bias if bias is not None and bias.is_leaf else None)
    if torch.is_autocast_enabled(x.device.type):
        kind_of = torch.get_autocast_dtype(x.device.type)
        x = x.to(kind_of)
        weight = weight.detach().to(kind_of)
        if bias is None:
            bias = None
        else:
            bias = bias.to(kind_of)
    with torch.autocast(x.device.type, enabled=False):
        result: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            x,
            weight.detach(),
            bias if leaves[1] is None or bias is None else bias.detach(),
            leaves,
            kind == "linear",
            queue,
            pack,
        )
    return result


def _bound(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    arguments = dict(zip(names, args, strict=False)) | kwargs
    return [arguments.get(name) for name in names]


@dataclass(eq=False)
class LossScale:
    """The factor on the loss of one training, which keeps gradients in half precision from zero.

    Attributes:
        most: the largest factor that there may be.
        factor: The factor of the next step's loss.
        good: steps since it changed.
    """

    most: float
    factor: float = START
    good: int = 0

    def update(self, finite: bool) -> None:
        """Adapt the factor after a step whose gradients were finite, or not."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.factor = max(self.factor / 2.0, 1.0)
        elif self.good == PATIENCE:
            self.factor = min(2.0 * self.factor, self.most)
            self.good = 0


def find_loss_scale(precision: str) -> LossScale | None:
    """Return the factor on the loss that a precision needs; None if it needs none."""
    if precision in MOST:
        return LossScale(MOST[precision])
    return None
