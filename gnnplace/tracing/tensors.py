"""Tensors in arguments and results, the memory that they share, and plain data beside them."""

from __future__ import annotations

import torch

from gnnplace.torch_names import pytree

DATA = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
)
"""Types of plain data: values that are compared with `==`."""
_NO_TENSORS = (bool, int, float, type(None), str)


def get_storage_key(tensor: torch.Tensor) -> int:
    """Return a number that tensors which share memory have in common."""
    strided = tensor.layout == torch.strided
    if strided:
        return tensor.untyped_storage()._cdata
    return id(tensor)


def find_tensors(tree: object) -> list[torch.Tensor]:
    """Return the tensors among arguments or results, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, tuple | list) and type(tree) in (tuple, list):
        return [
            t for x in tree if not isinstance(x, _NO_TENSORS) for t in find_tensors(x)
        ]
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
