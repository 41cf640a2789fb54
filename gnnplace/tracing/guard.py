"""What tracing must not lose and must not leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from gnnplace.tracing.attributes import Attributes


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore the plain attributes that a forward pass sets on modules.

    A model that keeps an activation in `self.cache` would otherwise keep a fake tensor.
    """
    with Attributes(module).restored():
        yield


@contextmanager
def custom_functions() -> Iterator[list[str]]:
    """Collects names of the `torch.autograd.Function`s that are applied within it.

    `torch.export` traces their forward and would differentiate that, in place of their own
    backward.
    """
    found: list[str] = []
    original = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    def apply(cls: type, *args: Any, **options: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            found.append(cls.__name__)
        return original(cls, *args, **options)

    with patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield found
