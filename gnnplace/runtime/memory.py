"""Memory that forked workers share: anonymous, so that nothing is left behind when they end.

Every block is an anonymous shared mapping made before the workers are forked. It has no name in
the file system; the kernel frees it with the last process that maps it, however that one ends.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch

from gnnplace.errors import ExecutionError

WORD = 8
LINE = 64
"""Bytes of a cache line; words that different workers write lie on lines of their own."""


def shared_words(count: int) -> memoryview:
    """Zeroed 64-bit signed integers that this process and its forks share.

    Args:
        count: Number of words.

    Returns:
        A view that indexes as integers.
    """
    return memoryview(_mapped(max(count, 1) * WORD)).cast("q")


def shared_bytes(count: int) -> torch.Tensor:
    """Zeroed bytes that this process and its forks share.

    Args:
        count: Number of bytes.

    Returns:
        A uint8 tensor of shape (count,); it keeps the mapping alive.
    """
    return torch.frombuffer(_mapped(max(count, 1)), dtype=torch.uint8)[:count]


def _mapped(count: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, count)
    except (OSError, OverflowError, MemoryError) as error:
        raise ExecutionError(
            f"shared memory: {count} bytes cannot be mapped: {error}; take a smaller model or "
            "batch, or a machine with more memory"
        ) from None


def aligned(count: int) -> int:
    """`count` bytes rounded up to whole cache lines (torch aligns its own tensors so, too)."""
    return -(-count // LINE) * LINE


class Arena:
    """One shared block cut into tensors: reserve all of them, then take views of the block."""

    def __init__(self) -> None:
        self._bytes = 0
        self._block: mmap.mmap | None = None

    def reserve(self, count: int) -> int:
        """Reserves `count` bytes and returns their offset; only before the first `view`."""
        offset = self._bytes
        self._bytes += aligned(count)
        return offset

    def view(
        self,
        offset: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...] | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """A tensor on the reserved bytes at `offset`; without `stride` it is contiguous.

        Its storage is its own part of the block, so that it can be saved as any tensor. The first
        call maps the block, so make one before forking.
        """
        if self._block is None:
            self._block = _mapped(max(self._bytes, 1))
        stride = contiguous_stride(shape) if stride is None else stride
        count = span(shape, stride)
        if count == 0:
            return torch.empty_strided(shape, stride, dtype=dtype)
        flat = torch.frombuffer(self._block, dtype=dtype, count=count, offset=offset)
        return flat.as_strided(shape, stride)


def shared_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of CPU tensors in one shared block, with the strides that a plain copy has."""
    copies = shared_like(tensors)
    for name, copied in copies.items():
        copied.copy_(tensors[name])
    return copies


def shared_like(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Zeros in one shared block as tensors are; pages that nobody touches take no memory."""
    arena = Arena()
    likes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    offsets = {
        name: arena.reserve(span(tuple(like.shape), like.stride()) * like.element_size())
        for name, like in likes.items()
    }
    return {
        name: arena.view(offsets[name], tuple(like.shape), like.stride(), like.dtype)
        for name, like in likes.items()
    }


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a row-major tensor of `shape`."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last one of a strided tensor, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
