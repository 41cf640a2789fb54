"""Random numbers that do not depend on who draws them.

Dropout draws from the process's generator, so that stages, shards and recomputation would all draw
others. Before every call that draws, the generator is seeded by the step, the micro-batch and the
number of the call among those that draw. The same is done to the user's model when it is compared
(`drawn_alike`), so that masks are the same ones there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gnnplace.sharding.captured.calls import CallGraph, function_name

DRAWS = ("dropout", "rand", "bernoulli", "multinomial", "normal", "uniform", "exponential")
ATTENTION, POSITION = "scaled_dot_product_attention", 4
LARGE = 2**61 - 1  # a prime: seeds stay below 2^63


def draws(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of torch draws random numbers, or might."""
    name = function_name(function)
    if name == ATTENTION:
        chance = args[POSITION] if len(args) > POSITION else kwargs.get("dropout_p", 0.0)
        return bool(chance)
    if name in ("manual_seed", "fork_rng") or "normaliz" in name or name.endswith("_norm"):
        return False
    return any(word in name for word in DRAWS)


def numbered_draws(graph: CallGraph, some: Sequence[int]) -> dict[int, int]:
    """Number among all calls that draw, by index of the call; of some calls."""
    found = [i for i, c in enumerate(graph.calls) if draws(c.function, c.args, c.kwargs)]
    return {i: k for k, i in enumerate(found) if i in set(some)}


def seed_of(base: int, step: int, example: int, number: int) -> int:
    """A seed that differs in each of its four causes."""
    found = base
    for part in (step, example, number):
        found = (found * 6364136223846793005 + 1442695040888963407 * (part + 1)) % LARGE
    return found


class _Alike(TorchFunctionMode):
    """Seeds before every call that draws."""

    def __init__(self, causes: tuple[int, int, int], attention: bool) -> None:
        super().__init__()
        self.causes, self.attention, self.number = causes, attention, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.attention and function_name(func) == ATTENTION:
            args = (*args[:POSITION], *(0.0,) * (len(args) > POSITION), *args[POSITION + 1 :])
            kwargs = {k: 0.0 if k == "dropout_p" else v for k, v in kwargs.items()}
        if draws(func, args, kwargs):
            torch.manual_seed(seed_of(*self.causes, self.number))
            self.number += 1
        return func(*args, **kwargs)


@contextmanager
def drawn_alike(base: int, step: int, example: int, *, attention: bool = True) -> Iterator[None]:
    """The random numbers that a plan's run draws, in a model that runs as it is.

    Args:
        base: seed of the run.
        step: its number.
        example: number of the micro-batch.
        attention: whether attention drops; a part of its heads draws other numbers than all.
    """
    with _Alike((base, step, example), attention):
        yield
