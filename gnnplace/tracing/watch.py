"""What a model's Python code does beside computing tensors, and whether a captured step may be so.

A captured step is a fixed list of operations. Python code runs once, at capture; what it does
then must not differ from what it would do at the next step. `watched` refuses what would:

* random numbers from Python's or numpy's generators, and seeds set anew at every step;
* a number of a tensor that the code asks for and then goes on without (`try: x.item()`);
* a backward pass inside the forward pass, which leaves gradients behind.

It answers `torch.compiler.is_compiling()` and its like with "no", so that the path of eager mode is
captured. The library transformers alone is told "yes": it asks in order to leave out decisions
that depend on numbers, and its two paths compute the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses import fake_tensor

from gnnplace.errors import CaptureError
from gnnplace.tracing.blame import user_place

TRACED_LIBRARIES = ("transformers",)
"""Libraries that are told that they are being traced."""


@contextmanager
def watched() -> Iterator[None]:
    """Refuses what a captured step cannot repeat; generators are left as they were.

    Raises:
        CaptureError: names what was done and, where it is known, the line.
    """
    asked: list[str] = []
    python, arrays = random.getstate(), _arrays()
    with ExitStack() as stack:
        for context in (*_answers(), *_refusals(), _unanswered(asked)):
            stack.enter_context(context)
        yield
        drawn = _drawn(python, arrays)
    random.setstate(python)
    np.random.set_state(arrays)  # noqa: NPY002 - the user's, not ours
    if drawn:
        raise CaptureError(
            f"the model draws from {drawn}, and a captured step would use the same number every "
            "time; draw from torch's generators"
        )
    if asked:
        raise CaptureError(
            f"the model asks for a number of a tensor{asked[0]} and goes on without it when it "
            "gets none; take that out, the captured step would be another one"
        )


def _drawn(python: Any, arrays: Any) -> str:
    if random.getstate() != python:
        return "Python's `random`"
    same = all(map(np.array_equal, _arrays(), arrays))
    return "" if same else "`numpy.random`"


def _arrays() -> Any:
    return np.random.get_state()  # noqa: NPY002 - the user's, not ours


def _answers() -> Iterator[Any]:
    """What code is told that asks whether it is being compiled."""

    def answer() -> bool:
        name = sys._getframe(1).f_globals.get("__name__", "")
        return str(name).partition(".")[0] in TRACED_LIBRARIES

    for owner, name in (
        (torch.compiler, "is_compiling"),
        (torch.compiler, "is_exporting"),
        (torch._utils, "is_compiling"),
    ):
        yield patch.object(owner, name, answer)


def _refusals() -> Iterator[Any]:
    for owner, name, mend in (
        (torch, "manual_seed", "seeds that a step sets are not part of a captured one"),
        (torch.Tensor, "backward", "use torch.autograd.grad"),
        (torch.autograd, "backward", "use torch.autograd.grad"),
    ):
        yield patch.object(owner, name, _refusal(name, mend))


def _refusal(name: str, mend: str) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        raise CaptureError(f"the model calls {name}(){user_place()}; {mend}")

    return refuse


def _unanswered(asked: list[str]) -> Any:
    """Collects the places of questions that tensors without numbers cannot answer."""
    original = fake_tensor.DataDependentOutputException.__init__

    def noted(self: Any, *args: Any) -> None:
        asked.append(user_place())
        original(self, *args)

    return patch.object(fake_tensor.DataDependentOutputException, "__init__", noted)
