"""Python code of a model on tensors that claim a device (`Claims`), on a torch without it.

Some methods of tensors ask for a guard of their device before they get to any op. Here they are ops
instead: `contiguous`, indexing, and `copy_`, which also torch's own decompositions call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

aten = torch.ops.aten


@contextmanager
def unguarded() -> Iterator[None]:
    """Within it these methods are ops; for the whole process."""
    with (
        mock.patch.object(torch.Tensor, "contiguous", _contiguous),
        mock.patch.object(torch.Tensor, "copy_", _copy),
        mock.patch.object(torch.Tensor, "__getitem__", indexed),
        mock.patch.object(torch.Tensor, "__setitem__", _assign),
    ):
        yield


def indexed(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """`tensor[index]` by ops: numbers, slices, `None`, `...`, tensors and lists of numbers."""
    axis, gathered = 0, dict[int, torch.Tensor]()
    for part in _spelled_out(tensor, list(index) if isinstance(index, tuple) else [index]):
        if part is None:
            tensor = aten.unsqueeze.default(tensor, axis)
            axis += 1
        elif isinstance(part, slice):
            tensor = aten.slice.Tensor(tensor, axis, part.start, part.stop, part.step or 1)
            axis += 1
        elif type(part) is int:
            tensor = aten.select.int(tensor, axis, part)
        else:
            gathered[axis] = torch.as_tensor(part)
            axis += _dims(part)
    if not gathered:
        return tensor
    return aten.index.Tensor(tensor, [gathered.get(k) for k in range(max(gathered) + 1)])


def _spelled_out(tensor: torch.Tensor, parts: list[Any]) -> list[Any]:
    """The parts of an index with whole slices in the place of `...`."""
    where = next((k for k, part in enumerate(parts) if part is Ellipsis), None)
    if where is None:
        return parts
    before, after = parts[:where], parts[where + 1 :]
    left = tensor.dim() - sum(map(_dims, (*before, *after)))
    return [*before, *[slice(None)] * left, *after]


def _dims(part: Any) -> int:
    """Axes of the tensor that a part of an index stands for."""
    if part is None:
        return 0
    if isinstance(part, torch.Tensor) and part.dtype == torch.bool:
        return part.dim()
    return 1


def _copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return aten.copy_.default(tensor, source, non_blocking)


def _contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return aten.clone.default(tensor, memory_format=memory_format)


def _assign(tensor: torch.Tensor, index: Any, value: Any) -> None:
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, torch.Tensor | list) for part in parts):
        aten.index_put_.default(tensor, list(parts), torch.as_tensor(value))
        return
    made = value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value)
    aten.copy_.default(indexed(tensor, index), made)
