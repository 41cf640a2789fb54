"""Optimizers: the state and the update op of every parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnplace.errors import InputError
from gnnplace.tracing.program import operations


@dataclass(frozen=True)
class Optimizer:
    """The update of parameters after a step.

    Attributes:
        name: "sgd", "adam" or "adamw", or the class of an optimizer that runs its own step.
        update: Function of `operations`, called as `update(parameter, gradients, *state,
            *constants)`.
        state: Names of the state tensors of a parameter; "step" is a scalar, each other one has
            the parameter's shape; all start at zero.
        constants: Hyper-parameters that the update is called with.
    """

    name: str
    update: Callable[..., None]
    state: tuple[str, ...]
    constants: tuple[Any, ...]

    def takes_sparse(self) -> bool:
        """Return whether its twin in `torch.optim` updates by sparse gradients."""
        return self.name == "sgd" and not self.constants[-1]

    def states(self, parameter: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        """Return the state tensors that a parameter begins with, by their names.

        Args:
            parameter: The parameter; it may be fake.
            name: Its qualified name in the model.
        """
        del name  # all parameters have the same state
        return dict(zip(self.state, self.new_state(parameter), strict=True))

    def get_update(self, name: str) -> Callable[..., None]:
        """Return what updates the parameter of a name; called as `update` is."""
        del name  # all parameters are updated alike
        return self.update

    def new_state(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Return zero state tensors for a real or fake parameter, in the order of `state`."""
        return [
            torch.zeros((), dtype=torch.float32)
            if name == "step"
            else torch.zeros_like(parameter)
            for name in self.state
        ]


ADAM_STATE = ("step", "mean", "square")


def sgd(
    lr: float = 0.01, momentum: float = 0.0, weight_decay: float = 0.0
) -> Optimizer:
    """Return stochastic gradient descent as `torch.optim.SGD` does it, with momentum if not 0."""
    if momentum:
        constants = (lr, momentum, weight_decay)
        return Optimizer("sgd", operations.momentum_update, ("momentum",), constants)
    return Optimizer("sgd", operations.sgd_update, (), (lr, weight_decay))


def adamw(
    lr: float = 1e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Optimizer:
    """Return AdamW with the defaults of `torch.optim.AdamW`."""
    constants = (lr, (betas[0], betas[1]), eps, weight_decay)
    return Optimizer("adamw", operations.adamw_update, ADAM_STATE, constants)


def adam(
    lr: float = 1e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Return Adam with the defaults of `torch.optim.Adam`."""
    constants = (lr, (betas[0], betas[1]), eps, weight_decay)
    return Optimizer("adam", operations.adam_update, ADAM_STATE, constants)


def make_optimizer(name: str | Optimizer) -> Optimizer:
    """Return the optimizer of a name with its default hyper-parameters.

    Raises:
        InputError: neither "sgd" nor "adamw".
    """
    if isinstance(name, Optimizer):
        return name
    if name == "sgd":
        return sgd()
    if name == "adamw":
        return adamw()
    raise InputError(f"optimizer {name!r}: there are 'sgd' and 'adamw'")
