"""`StepModule`: a model and its loss as one module from flat tensors to what a step returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError
from gnnplace.tracing.arguments import arguments

Inputs = Sequence[Any] | Mapping[str, Any] | torch.Tensor


class StepModule(nn.Module):
    """Calls `model` on the inputs, then the loss on its output.

    The loss is called as `loss(output)`; if it requires more arguments, with the last inputs
    too (targets). The model gets all inputs but those targets, or all where its forward asks
    for them (`arguments`). Tensors among the inputs are flattened, the rest are constants.

    Args:
        model: Becomes the submodule `model`.
        loss: A callable that returns the loss, or a dict with the entry `loss`; or `None`: the
            output's `.loss`, else the sum of all its floating-point tensors.
        inputs: Example inputs: positional, by keyword, or one tensor.
        forward_only: Return the output's tensors instead of the loss.

    Raises:
        InputError: inputs that the model's forward cannot take.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        inputs: Inputs,
        *,
        forward_only: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.forward_only = forward_only
        self.args, self.kwargs = _split(inputs)
        arguments(model, loss, self.args, self.kwargs)  # refuses what cannot be called
        self._leaves, self._spec = pytree.tree_flatten((self.args, self.kwargs))

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The example tensors in the order in which `forward` takes them."""
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))

    def sources(self) -> tuple[str, ...]:
        """A name for each of `inputs()`: its keyword, else its position among the tensors."""
        if self.kwargs and all(isinstance(v, torch.Tensor) for v in self.kwargs.values()):
            return tuple(self.kwargs)
        return tuple(str(i) for i in range(len(self.inputs())))

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the loss, or the output's tensors if `forward_only`."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(x, torch.Tensor) else x for x in self._leaves]
        given = arguments(self.model, self.loss, *pytree.tree_unflatten(leaves, self._spec))
        output = self.model(*given.args, **given.kwargs)
        if self.forward_only:
            return tuple(output_tensors(output))
        if self.loss is not None:
            return scalar_loss(self.loss(output, *given.targets))
        return default_loss(output)


def scalar_loss(found: Any) -> torch.Tensor:
    """The loss that a loss function returned: a tensor, or the entry `loss` of a dict.

    Raises:
        InputError: it returned something else, of which no part is known to be the loss.
    """
    if isinstance(found, Mapping) and isinstance(found.get("loss"), torch.Tensor):
        found = found["loss"]
    if isinstance(found, torch.Tensor):
        return found
    told = f"a dict of {', '.join(map(str, found))}" if isinstance(found, Mapping) else ""
    raise InputError(
        f"the loss function returns {told or type(found).__name__}; return the loss alone, a "
        "tensor, or a dict with the entry 'loss'"
    )


def default_loss(output: Any) -> torch.Tensor:
    """The output's own `.loss`, else the sum of its floating-point tensors.

    Raises:
        InputError: there is neither.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is not None:
        return loss
    tensors = [t for t in output_tensors(output) if t.is_floating_point()]
    if not tensors:
        raise InputError("the model returns no floating-point tensor; give a loss")
    return torch.stack([t.sum() for t in tensors]).sum() if len(tensors) > 1 else tensors[0].sum()


def output_tensors(output: Any) -> list[torch.Tensor]:
    """Every tensor of a nested output, in order."""
    if isinstance(output, Mapping):
        output = dict(output)
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _split(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}
