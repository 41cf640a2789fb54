"""Watches a model's code while its step is traced, and refuses code that a recording cannot repeat.

A captured step is a fixed list of operations. Python code runs only once, during capture, and must
do the same then as in every later step. `watch_step` refuses:

* random numbers from Python's or numpy's generators, and seeds set anew at every step;
* a number of a tensor that the code asks for and then goes on without (`try: x.item()`);
* a backward pass inside the forward pass, which leaves gradients behind.

It answers `torch.compiler.is_compiling()` and its like with "no", so that the path of eager mode is
captured. The library transformers alone is told "yes": it asks in order to leave out decisions that
depend on numbers, and its two paths compute the same.

`other_autocasts`: autocast looks at the device of every tensor. A model that says
`torch.autocast("cuda")` computes in half precision on a GPU; captured on a CPU its ops have no
casts, wherever they run afterwards, just as eager PyTorch has none on a CPU. That is said in a
line. An autocast that was made before the capture, as a decorator is, does not tell whether it was
enabled where torch has no GPU; the line says so.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.amp import autocast_mode
from torch.nn import functional
from torch.overrides import handle_torch_function

from gnnplace.errors import CaptureError
from gnnplace.torch_names import OpOverload, fake_tensor, torch_utils
from gnnplace.tracing.user_code import user_place

TRACED_LIBRARIES = ("transformers",)
"""Libraries that are told that they are being traced."""
HOST = "cpu"
ASKED = "_gnnplace_asked"
"""Attribute of an autocast: whether it was asked for; torch turns it off where there is no GPU."""
Patch = AbstractContextManager[object]


@contextmanager
def watch_step() -> Iterator[None]:
    """Refuse what a captured step cannot repeat; generators are left as they were.

    Raises:
        CaptureError: says what was done and, if it is known, at which line.
    """
    places: list[str] = []
    with other_generators() as generators, ExitStack() as stack:
        for context in (*_answers(), *_refusals(), _collect_unanswered(places)):
            stack.enter_context(context)
        yield
    if generators:
        raise CaptureError(
            f"the model draws from {generators[0]}, and a captured step would use the same number "
            "every time; draw from torch's generators"
        )
    if places:
        raise CaptureError(
            f"the model asks for a number of a tensor{places[0]} and goes on without it when it "
            "gets none; take that out, the captured step would be another one"
        )


@contextmanager
def other_generators() -> Iterator[list[str]]:
    """Collect the generators of Python and numpy that are drawn from; leave them as they were."""
    python_state = random.getstate()
    numpy_state = _numpy_state()
    names: list[str] = []
    try:
        yield names
    finally:
        if random.getstate() != python_state:
            names.append("Python's `random`")
        if not all(map(np.array_equal, _numpy_state(), numpy_state)):
            names.append("`numpy.random`")
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 - the user's, not ours


def _numpy_state() -> Any:
    """Return the state of numpy's global generator."""
    return np.random.get_state()  # noqa: NPY002 - the user's, not ours


def _answers() -> Iterator[Patch]:
    """Yield patches that answer code which asks whether it is being compiled."""

    def answer() -> bool:
        name = sys._getframe(1).f_globals.get("__name__", "")
        return str(name).partition(".")[0] in TRACED_LIBRARIES

    for owner, name in (
        (torch.compiler, "is_compiling"),
        (torch.compiler, "is_exporting"),
        (torch_utils, "is_compiling"),
    ):
        yield patch.object(owner, name, answer)


def _refusals() -> Iterator[Patch]:
    """Yield patches that refuse seeds, backward passes and tensors that torch would lose."""
    for owner, name, remedy in (
        (torch, "manual_seed", "seeds that a step sets are not part of a captured one"),
        (torch.Tensor, "backward", "use torch.autograd.grad"),
        (torch.autograd, "backward", "use torch.autograd.grad"),
    ):
        yield patch.object(owner, name, _refusal(name, remedy))
    yield patch.object(functional, "handle_torch_function", _handle)


def _handle(
    function: Callable[..., object],
    tensors: Sequence[object],
    *args: object,
    **options: object,
) -> object:
    """Hand a function to torch's modes, as torch does, if it passes on all its tensors.

    Raises:
        CaptureError: it does not, so that modes would not see a tensor.
    """
    passed_on = {*map(id, (*args, *options.values()))}
    if any(isinstance(x, torch.Tensor) and id(x) not in passed_on for x in tensors):
        raise CaptureError(
            f"torch loses a tensor that {function.__name__} is given{user_place()}, such as its "
            "weight, where it is recorded; write it out"
        )
    return handle_torch_function(function, tensors, *args, **options)


def _refusal(name: str, remedy: str) -> Callable[..., None]:
    """Return a function that refuses to be called."""

    def refuse(*args: object, **options: object) -> None:
        raise CaptureError(f"the model calls {name}(){user_place()}; {remedy}")

    return refuse


def _collect_unanswered(places: list[str]) -> Patch:
    """Return a patch that collects the places of questions which fake tensors cannot answer."""
    original = fake_tensor.DataDependentOutputException.__init__

    def note_question(
        self: fake_tensor.DataDependentOutputException, func: OpOverload
    ) -> None:
        places.append(user_place())
        original(self, func)

    return patch.object(
        fake_tensor.DataDependentOutputException, "__init__", note_question
    )


@contextmanager
def other_autocasts() -> Iterator[list[str]]:
    """Collect a line for every autocast of another device that is entered within."""
    lines: list[str] = []
    kind = autocast_mode.autocast
    make = kind.__init__
    enter = kind.__enter__

    def note_enabled(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        make(self, device_type, dtype, enabled, cache_enabled)
        setattr(self, ASKED, enabled)

    def note_entered(self: torch.autocast) -> object:
        is_enabled = getattr(self, ASKED, self._enabled or None)
        if self.device != HOST and is_enabled is not False:
            if is_enabled:
                condition = ""
            else:
                condition = ", if it is enabled,"
            lines.append(
                f"torch.autocast({self.device!r}){user_place()}{condition} does nothing to a step "
                "that is captured on a CPU, wherever it runs; use torch.autocast('cpu'), whose "
                "casts are kept, or capture with dtype='bfloat16'"
            )
        return enter(self)

    with ExitStack() as stack:
        stack.enter_context(patch.object(kind, "__init__", note_enabled))
        stack.enter_context(patch.object(kind, "__enter__", note_entered))
        yield lines
