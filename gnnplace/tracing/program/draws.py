"""Random numbers that do not depend on the device that draws them.

Dropout draws from the generator of the process, so that a recorded step, stages, shards and
recomputation would all draw other numbers than the model. So before every op that torch marks as
random, the generator is seeded by the number of the draw. `ProgramDraws` does the same to the
user's module, with the seeds of a program's ops, so that both draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnplace.torch_names import OpOverload, TorchDispatchMode
from gnnplace.tracing.program.operations import drawing, op_seed, seeded
from gnnplace.tracing.program.program import Program, ProgramOp
from gnnplace.tracing.signatures import may_draw
from gnnplace.tracing.tensors import find_tensors

DROPOUT = "native_dropout"
BERNOULLI = "bernoulli"
Seed = Callable[[int], int]
"""The seed of a draw, by its number."""
Operands = tuple[Any, ...]
Options = dict[str, Any]


class Seeded(TorchDispatchMode):
    """A mode that seeds the generator before every op that draws.

    Args:
        seed: Seed of a draw, by its number.
        number: Number of the first draw within.
    """

    def __init__(self, seed: Seed, number: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.number = number

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Operands = (),
        kwargs: Options | None = None,
    ) -> object:
        if not may_draw(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        self.begin_draw()
        torch.manual_seed(self.seed(self.number))
        self.number += 1
        result = func(*args, **(kwargs or {}))
        self.end_draw(func, result)
        return result

    def begin_draw(self) -> None:
        """Look at the generator before a draw."""

    def end_draw(self, func: OpOverload, result: object) -> None:
        """Look at what an op drew."""


class SeededAgain(Seeded):
    """A mode that seeds draws which checkpoints repeat as at first, by the generator's state."""

    def __init__(self, seed: Seed) -> None:
        super().__init__(seed)
        self._after: dict[bytes, tuple[Seed, int]] = {}

    def begin_with(self, seed: Seed) -> None:
        """Count draws anew, with other seeds."""
        self.seed = seed
        self.number = 0
        self._after[_state()] = seed, 0

    def begin_draw(self) -> None:
        """Take the number that the draw had at first, where a checkpoint repeats it."""
        self.seed, self.number = self._after.setdefault(
            _state(), (self.seed, self.number)
        )

    def end_draw(self, func: OpOverload, result: object) -> None:
        """Keep which draw follows in the state of the generator."""
        self._after[_state()] = self.seed, self.number


def _state() -> bytes:
    """Return the state of the CPU's generator as bytes."""
    return bytes(torch.get_rng_state().numpy())


class ProgramDraws(SeededAgain):
    """A mode in which a module draws what its recorded step draws, in the same order.

    Args:
        program: The recorded step.

    Attributes:
        difference: Why the module draws otherwise; empty if it does not.
        count: Draws of the recorded step.
    """

    def __init__(self, program: Program) -> None:
        # An op that a checkpoint repeats has the seed's name of the first.
        op_by_seed: dict[str, ProgramOp] = {}
        for op in program.ops:
            if op.target is seeded:
                op_by_seed.setdefault(str(op.args[0]), op)
        self._ops = list(op_by_seed.values())
        self._program = program
        self._drawn: set[int] = set()
        self.count = len(self._ops)
        self.difference = ""
        super().__init__(self._seed)
        self.begin_with(self._seed)

    def _seed(self, number: int) -> int:
        """Return the seed of a draw in the first step."""
        return op_seed(str(self._ops[number].args[0]) if number < self.count else "", 0)

    def end_draw(self, func: OpOverload, result: object) -> None:
        """Compare what an op drew with what the recorded one draws."""
        super().end_draw(func, result)
        number = self.number - 1
        self._drawn.add(number)
        if not self.difference and not self._draws_alike(func, result, number):
            self.difference = f"eager PyTorch draws otherwise at {func}"

    def finish(self) -> str:
        """Return why the module drew otherwise, after its passes; empty if it did not."""
        if not self.difference and len(self._drawn) != self.count:
            counts = (
                f"{len(self._drawn)} times, and the recorded step {self.count} times"
            )
            self.difference = f"eager PyTorch draws random numbers {counts}"
        return self.difference

    def _draws_alike(self, func: OpOverload, result: object, number: int) -> bool:
        """Return whether an op draws what the recorded one draws with the same seed."""
        if number >= self.count:
            return False
        op = self._ops[number]
        tensor = find_tensors(result)[0]
        value = next((name for name in op.results if name is not None), None)
        if value is None or tuple(self._program.values[value].shape) != tuple(
            tensor.shape
        ):
            return False
        name = _plain_name(str(func))
        recorded = _plain_name(str(op.args[1]))
        if name == recorded:
            # Of 0 and 1 the generator draws as many in every type.
            return (
                name == BERNOULLI or self._program.values[value].dtype == tensor.dtype
            )
        if (name, recorded) != (BERNOULLI, DROPOUT):
            return False
        with drawing(tensor.device, self._seed(number)):
            mask = torch.native_dropout(
                torch.ones_like(tensor), float(op.args[3]), True
            )[1]
        return torch.equal(mask, tensor != 0)


def _plain_name(name: str) -> str:
    """Return the name of an op without namespace, overload and mark of a change in place."""
    return (
        name.removeprefix("aten.")
        .partition(".")[0]
        .removesuffix("_")
        .removesuffix("_functional")
    )
