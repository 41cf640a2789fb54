"""Gradients between the workers, which compute them, and the loop, which may look and change them.

A pass is run in one of two ways: every update happens where its gradient is made (`AT_ONCE`), or
the gradients are stored in memory that all processes share and the updates are asked for later.
There are two sets of stores: while a parameter's `.grad` is one, the next pass fills the other, so
that gradients can be added up, whatever the loop zeroes in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gnnplace.runtime.memory import shared_like, shared_words
from gnnplace.tracing.operations import mean_gradient

SETS = 2
AT_ONCE = -1
"""How a pass is run: its updates at once; else the number of the set that gradients go to."""
LEFT_OUT = -1
"""What an update takes: nothing, the parameter stays; else the number of a set."""


@dataclass(frozen=True, eq=False)
class Store:
    """Where the gradient of one parameter lies.

    Attributes:
        sets: A tensor for each set, as the parameter is.
        words: The way of the pass, then what each update takes.
        position: The parameter's word.
    """

    sets: tuple[torch.Tensor, ...]
    words: memoryview
    position: int

    def keeps(self, gradients: list[torch.Tensor]) -> bool:
        """Stores a gradient if the pass is run that way; else its update is due at once."""
        way = self.words[0]
        if way == AT_ONCE:
            return False
        gradient = mean_gradient(gradients)
        self.sets[way].copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        return True

    def taken(self, device: torch.device) -> torch.Tensor | None:
        """The gradient to update with, on a device; None where the parameter stays as it is."""
        number = self.words[self.position]
        return None if number == LEFT_OUT else self.sets[number].to(device)


class Gradients:
    """The stores of all parameters that a step trains; made before the workers are forked.

    Args:
        like: Parameters by their names in the model.
    """

    def __init__(self, like: Mapping[str, torch.Tensor]) -> None:
        self._words = shared_words(1 + len(like))
        self._words[0] = AT_ONCE
        sets = [shared_like(like) for _ in range(SETS)]
        self.stores = {
            name: Store(tuple(one[name] for one in sets), self._words, 1 + k)
            for k, name in enumerate(like)
        }

    def at_once(self) -> None:
        """The next pass updates at once."""
        self._words[0] = AT_ONCE

    def fill(self, parameters: Mapping[str, torch.Tensor]) -> int:
        """The next pass fills a set that is no parameter's gradient; returns its number."""
        used = [self._set_of(name, p.grad) for name, p in parameters.items()]
        free = min(range(SETS), key=used.count)
        for name, number in zip(parameters, used, strict=True):
            if number == free:  # rare: some of both sets are in use
                parameters[name].grad = parameters[name].grad.clone()  # type: ignore[union-attr]
        self._words[0] = free
        return free

    def hand_over(self, parameters: Mapping[str, torch.Tensor], number: int, weight: float) -> None:
        """Adds the gradients of a set, times a weight, to the parameters', as `backward` does."""
        for name, parameter in parameters.items():
            found = self.stores[name].sets[number]
            if parameter.grad is not None:
                parameter.grad.add_(found, alpha=weight)
                continue
            if weight != 1:
                found.mul_(weight)
            parameter.grad = found

    def take(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """The next update takes the parameters' gradients as they are now."""
        for name, parameter in parameters.items():
            store, number = self.stores[name], self._set_of(name, parameter.grad)
            if number is None and parameter.grad is not None:
                number = 0
                store.sets[0].copy_(parameter.grad)
                parameter.grad = store.sets[0]
            self._words[store.position] = LEFT_OUT if number is None else number

    def _set_of(self, name: str, gradient: torch.Tensor | None) -> int | None:
        sets: Iterable[torch.Tensor] = self.stores[name].sets
        places = {tensor.data_ptr(): number for number, tensor in enumerate(sets)}
        return None if gradient is None else places.get(gradient.data_ptr())


def with_backward(loss: torch.Tensor, hand_over: Callable[[float], None]) -> torch.Tensor:
    """A loss whose `backward()` calls a function with the gradient of the loss.

    Args:
        loss: A scalar without a graph.
        hand_over: Gives the parameters their gradients, times a number.
    """
    anchor = torch.zeros((), requires_grad=True)
    found: torch.Tensor = _Handed.apply(anchor, loss, hand_over)  # type: ignore[no-untyped-call]
    return found


class _Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, loss: torch.Tensor, hand_over: Any) -> torch.Tensor:
        ctx.hand_over = hand_over
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        ctx.hand_over(float(gradients[0]))
        return None, None, None
