"""Random numbers of a plan's run: the same whichever device draws them.

Dropout draws from the process's generator, so stages, shards and recomputation would each draw
different numbers. Therefore the generator is seeded before every op that torch marks as random,
with the step, the micro-batch and the number of the draw. `draw_as_plan` does the same to the
user's unplanned model, so that results can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch.overrides import TorchFunctionMode

from gnnplace.tracing import SeededAgain, function_name

ATTENTION = "scaled_dot_product_attention"
DROPOUT_POSITION = 4
"""Position of `dropout_p` among the arguments of `ATTENTION`."""
LARGE = 2**61 - 1
"""Modulus of seeds, a prime; torch takes seeds below 2^63."""
MULTIPLIER = 6364136223846793005
INCREMENT = 1442695040888963407
"""Constants of Knuth's linear congruential generator MMIX, which mix the parts of a seed."""


def derive_seed(base: int, step: int, example: int, number: int) -> int:
    """Return a seed from 0 to 2^61 - 2 that depends on each of the four arguments.

    Args:
        base: Seed of the run.
        step: Number of the step.
        example: Number of the micro-batch.
        number: Number of the draw.
    """
    seed = base
    for part in (step, example, number):
        seed = (seed * MULTIPLIER + INCREMENT * (part + 1)) % LARGE
    return seed


class _SharesSeeded(SeededAgain):
    """A torch mode that seeds the draws of a step, one micro-batch after the other.

    Args:
        base: Seed of the run.
        step: Number of the step.
    """

    def __init__(self, base: int, step: int) -> None:
        super().__init__(partial(derive_seed, base, step, 0))
        self._base_and_step = base, step

    def begin(self, example: int) -> None:
        """Begin a micro-batch: the next draw is its first."""
        self.begin_with(partial(derive_seed, *self._base_and_step, example))


class _Undropped(TorchFunctionMode):
    """A torch mode in which attention drops no weights."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function_name(func) == ATTENTION:
            if len(args) > DROPOUT_POSITION:
                args = list(args)
                args[DROPOUT_POSITION] = 0.0
            if "dropout_p" in kwargs:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


@contextmanager
def draw_as_plan(
    base: int, step: int, example: int, *, attention: bool = True
) -> Iterator[_SharesSeeded]:
    """Let an unplanned model draw the random numbers that a plan's run draws, in both passes.

    Args:
        base: Seed of the run.
        step: Number of the step.
        example: Number of the micro-batch.
        attention: Whether attention drops weights. It must not where the plan splits heads: shards
            of the heads draw other numbers than all heads together.

    Yields:
        The mode that seeds the draws.
    """
    with (
        nullcontext() if attention else _Undropped(),
        _SharesSeeded(base, step) as draws,
    ):
        draws.begin(example)
        yield draws
