"""The clocks that a device program ticks: a CPU worker reads them, a GPU notes events.

A tick stores two words, wall and CPU nanoseconds. Kernels of a GPU run behind the program, so
there a tick records an event on the stream, and the words are filled in when the step is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

MILLI_TO_NANO = 1e6


class DeviceClock:
    """Clocks of a CPU worker: wall time, and the CPU time of its only thread."""

    def begin(self) -> None:
        """Called before a step."""

    def finish(self, ticks: memoryview, base: int, count: int) -> None:
        """Called after a step, whose `count` ticks begin at word `base`."""

    def functions(self) -> dict[str, Callable[[], int]]:
        """What a device program calls: `wall`, the host's monotonic clock, and `cpu`, the time
        that this thread has computed, in nanoseconds.
        """
        return {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


class CudaClock(DeviceClock):
    """Events on the current stream of a GPU; both clocks are its own time."""

    def __init__(
        self,
        new_event: Callable[[], torch.cuda.Event] = lambda: torch.cuda.Event(enable_timing=True),
        synchronize: Callable[[], None] = torch.cuda.synchronize,
    ) -> None:
        self._new_event, self._synchronize = new_event, synchronize
        self._events: list[torch.cuda.Event] = []
        self._start = 0

    def begin(self) -> None:
        """Ties the stream's time to the host's, while the stream is idle."""
        self._synchronize()
        self._events.clear()
        self._record()
        self._start = time.perf_counter_ns()

    def finish(self, ticks: memoryview, base: int, count: int) -> None:
        """Waits for the stream and writes the times of the events as ticks."""
        self._synchronize()
        first = self._events[0]
        for i, event in enumerate(self._events[1 : count + 1]):
            passed = self._start + int(first.elapsed_time(event) * MILLI_TO_NANO)
            ticks[base + 2 * i] = ticks[base + 2 * i + 1] = passed

    def functions(self) -> dict[str, Callable[[], int]]:
        """`wall` records an event; the words are placeholders until `finish`."""
        return {"wall": self._record, "cpu": lambda: 0}

    def _record(self) -> int:
        event = self._new_event()
        event.record()
        self._events.append(event)
        return 0


def device_clock(device: torch.device) -> DeviceClock:
    """The clock for tensors on `device`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return CudaClock()
    return DeviceClock()
