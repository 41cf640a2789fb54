"""Memory that forked workers share, and what a worker's memory is taken by.

Every shared block is an anonymous mapping made before the workers are forked. It has no name in
the file system; the kernel frees it with the last process that maps it, however that one ends.

What a worker takes is said in three parts:

* **Before.** The resident set of the process (`VmRSS` in `/proc/self/status`, proc(5)): Python,
  libraries, threads. Most of it is shared with the process that forked it.
* **A step.** What torch's allocator handed out at most beyond what was alive before: of a GPU by
  its own statistics, of a CPU by summing every allocation and release that the profiler reports in
  one more step, which is not timed. Work space that libraries take past torch's allocator is not in
  it.
* **Grown.** By how much the resident set grew at most, the pages of all steps: holes in the heap
  and work space of libraries included. Linux keeps the greatest resident set (`VmHWM`) and forgets
  it when "5" is written to `/proc/self/clear_refs`. What the parent had freed and the worker takes
  up again is not seen.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch
from torch.autograd.profiler import profile

from gnnplace.errors import ExecutionError
from gnnplace.files import silent

WORD = 8
LINE = 64
"""Bytes of a cache line; words that different workers write lie on lines of their own."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""Where the kernel tells the peak of this process, and where it is told to forget it."""
FORGET_PEAK = "5"
KIB = 1024.0


def make_shared_words(count: int) -> memoryview:
    """Return zeroed 64-bit signed integers that this process and its forks share.

    Args:
        count: The number of words.

    Returns:
        A view that indexes as integers.
    """
    return memoryview(_map_memory(max(count, 1) * WORD)).cast("q")


def _map_memory(count: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, count)
    except (OSError, OverflowError, MemoryError) as error:
        raise ExecutionError(
            f"shared memory: {count} bytes cannot be mapped: {error}; take a smaller model or "
            "batch, or a machine with more memory"
        ) from None


def align_bytes(count: int) -> int:
    """Round `count` bytes up to whole cache lines, as torch aligns its own tensors."""
    return -(-count // LINE) * LINE


class Arena:
    """One shared block cut into tensors: reserve all of them, then take views of the block."""

    def __init__(self) -> None:
        self._bytes = 0
        self._block: mmap.mmap | None = None

    def reserve(self, count: int) -> int:
        """Reserve `count` bytes and return their offset. Call it before the first `view` only."""
        offset = self._bytes
        self._bytes += align_bytes(count)
        return offset

    def view(
        self,
        offset: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...] | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return a tensor on the reserved bytes at `offset`; without `stride` it is contiguous.

        Its storage is its own part of the block, so that it can be saved as any tensor. The first
        call maps the block, so make one before forking.
        """
        if self._block is None:
            self._block = _map_memory(max(self._bytes, 1))
        if stride is None:
            stride = contiguous_stride(shape)
        count = span(shape, stride)
        if count == 0:
            return torch.empty_strided(shape, stride, dtype=dtype)
        flat = torch.frombuffer(self._block, dtype=dtype, count=count, offset=offset)
        return flat.as_strided(shape, stride)


def copy_to_shared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy CPU tensors into one shared block, with the strides that a plain copy has."""
    copies = make_shared_like(tensors)
    for name, copied in copies.items():
        copied.copy_(tensors[name])
    return copies


def make_shared_like(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return zeros in one shared block, shaped as `tensors`.

    Pages that nobody touches take no memory.
    """
    arena = Arena()
    likes = {
        name: torch.empty_like(tensor, device="meta")
        for name, tensor in tensors.items()
    }
    offsets = {
        name: arena.reserve(
            span(tuple(like.shape), like.stride()) * like.element_size()
        )
        for name, like in likes.items()
    }
    return {
        name: arena.view(offsets[name], tuple(like.shape), like.stride(), like.dtype)
        for name, like in likes.items()
    }


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides in elements of a row-major tensor of `shape`."""
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the elements from the first to the last one of a strided tensor, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


class PeakMemory:
    """Peak of this process from now on."""

    def __init__(self) -> None:
        self._before = None
        try:
            CLEAR.write_text(FORGET_PEAK, encoding="ascii")
        except OSError:
            return
        self._before = self._read("VmRSS")

    @property
    def before(self) -> float | None:
        """Return the bytes of the resident set at the beginning, or None if unknown."""
        return self._before

    def bytes(self) -> float | None:
        """Return the most bytes that the resident set has grown by, or None if unknown."""
        peak = self._read("VmHWM")
        if self._before is None or peak is None:
            return None
        return max(peak - self._before, 0.0)

    def _read(self, key: str) -> float | None:
        try:
            lines = STATUS.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        values = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
        if values:
            return KIB * float(values[0])
        return None


class StepPeak:
    """Bytes that torch hands out at most between the two ends of a ``with`` block, on one device.

    Args:
        device: a CPU or a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.bytes = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the memory that is taken inside and store it in ``bytes``."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            allocated_before = torch.cuda.memory_allocated(self._device)
            yield
            self.bytes = float(
                torch.cuda.max_memory_allocated(self._device) - allocated_before
            )
            return
        profiled = profile(profile_memory=True)
        with silent(2):
            profiled.__enter__()
        try:
            yield
        finally:
            with silent(2):
                profiled.__exit__(None, None, None)
        results = profiled.kineto_results
        every = results.events() if results else []
        events = [event for event in every if event.name() == "[memory]"]
        events.sort(key=lambda event: event.start_ns())
        # The greatest sum of allocations less releases.
        sums = accumulate(event.nbytes() for event in events)  # type: ignore[attr-defined]
        self.bytes = float(max(sums, default=0))


def storage_bytes(tensors: Iterable[torch.Tensor]) -> float:
    """Return the bytes of the storages of some tensors, each counted once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
        for tensor in tensors
    }
    return float(sum(storage.nbytes() for storage in storages.values()))
