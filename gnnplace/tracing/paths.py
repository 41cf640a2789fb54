"""Which module each traced node belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.fx import traceback

STACK = "nn_module_stack"
"""Where torch keeps it: qualified name and class of every module that is being called."""


@contextmanager
def module_paths(root: nn.Module) -> Iterator[None]:
    """Within it every node that is traced carries the names of the modules that were called.

    Torch hands them on to the backward nodes of the same operation. A module of several names has
    the first.

    Args:
        root: Names are relative to it; it is not named itself.
    """
    names = {id(module): name for name, module in root.named_modules() if name}
    original = nn.Module._call_impl

    def call(self: nn.Module, *args: Any, **options: Any) -> Any:
        name = names.get(id(self))
        if name is None:
            return original(self, *args, **options)
        outer = traceback.current_meta.get(STACK)
        traceback.current_meta[STACK] = {**(outer or {}), name: (name, type(self))}
        try:
            return original(self, *args, **options)
        finally:
            traceback.current_meta.pop(STACK)
            if outer is not None:
                traceback.current_meta[STACK] = outer

    with traceback.preserve_node_meta(), patch.object(nn.Module, "_call_impl", call):
        yield
