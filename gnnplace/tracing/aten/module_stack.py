"""Names of the modules that are being called, on every node that is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.fx import traceback

from gnnplace.foreign import patch_private, read_private
from gnnplace.torch_names import MODULE_CALL

STACK = "nn_module_stack"
"""Key of torch's metadata: qualified name and class of every module that is being called."""


@contextmanager
def module_paths(root: nn.Module) -> Iterator[None]:
    """Give every node that is traced within the names of the modules that were called.

    Torch hands them on to the backward nodes of the same operation. A module of several names has
    the first.

    Args:
        root: Names are relative to it; it is not named itself.
    """
    names = {id(module): name for name, module in root.named_modules() if name}
    original = read_private(nn.Module, MODULE_CALL, "torch")

    def call(self: nn.Module, *args: object, **options: object) -> object:
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

    patched = patch_private(nn.Module, MODULE_CALL, call, "torch")
    with traceback.preserve_node_meta(), patched:
        yield
