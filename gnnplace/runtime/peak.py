"""What a worker's memory is taken by: what it holds before a step, and what a step takes at most.

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

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch
from torch.autograd.profiler import profile

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
KIB = 1024.0


class PeakMemory:
    """Peak of this process from now on.

    Args:
        status: Where the kernel tells it.
        clear: Where it is told to forget it.
    """

    def __init__(self, status: Path = STATUS, clear: Path = CLEAR) -> None:
        self._status, self._before = status, None
        try:
            clear.write_text(FORGET_PEAK, encoding="ascii")
        except OSError:
            return
        self._before = self._read("VmRSS")

    @property
    def before(self) -> float | None:
        """Bytes of the resident set at the beginning; None where the kernel does not say."""
        return self._before

    def bytes(self) -> float | None:
        """Bytes that the resident set has grown by at most; None where the kernel does not say."""
        peak = self._read("VmHWM")
        if self._before is None or peak is None:
            return None
        return max(peak - self._before, 0.0)

    def _read(self, key: str) -> float | None:
        try:
            lines = self._status.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        found = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
        return KIB * float(found[0]) if found else None


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
        """Measures what runs inside, as ``bytes``."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            yield
            self.bytes = float(torch.cuda.max_memory_allocated(self._device) - before)
            return
        profiled = profile(profile_memory=True)
        with _silent():
            profiled.__enter__()
        try:
            yield
        finally:
            with _silent():
                profiled.__exit__(None, None, None)
        self.bytes = float(_peak(profiled))


def _peak(profiled: profile) -> int:
    """The greatest sum of allocations less releases, in the order of their times."""
    results = profiled.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"] if results else []
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events), default=0)  # type: ignore[attr-defined]


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps what the profiler's library tells of itself from standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> float:
    """Bytes of the storages below some tensors, each once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return float(sum(storage.nbytes() for storage in storages.values()))
