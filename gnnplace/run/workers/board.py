"""The board: a few shared words in which every worker reports its progress, and a barrier.

A waiting worker first spins and then yields its core. If each worker has its own core, a spinning
worker sees a flag within a microsecond; workers that share a core yield at once, so that the other
can run. The flags need stores to be seen in order, which x86 guarantees (`has_ordered_stores`).
"""

from __future__ import annotations

import os
import platform
import time

from gnnplace.run.workers.memory import LINE, WORD, make_shared_words

STRIDE = LINE // WORD
ARRIVED, SEGMENT, STEP, WAITING, DONE, OFFSET = range(6)
SPINS = 400_000
"""Polls before the first yield, about 20 ms: a worker with a core of its own that yields while it
waits for another one loses the core for a whole time slice, if anybody else wants it."""
YIELDS = 20
"""Yields before workers that share cores sleep between polls."""
NAP = 5e-5


def has_ordered_stores() -> bool:
    """Return whether other cores see the stores of one core in order."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686", "i386")


class Board:
    """Progress words of all workers.

    Args:
        num_workers: Workers that meet at the barrier.
        crowded: More workers than cores: yield at once, nap soon.
    """

    def __init__(self, num_workers: int, crowded: bool = False) -> None:
        self.num_workers = num_workers
        self.crowded = crowded
        self.words = make_shared_words(num_workers * STRIDE)

    def get(self, worker: int, field: int) -> int:
        """Return a word of a worker, such as `ARRIVED`, `SEGMENT`, `STEP` or `WAITING`."""
        return self.words[worker * STRIDE + field]

    def put(self, worker: int, field: int, value: int) -> None:
        """Set a word of a worker."""
        self.words[worker * STRIDE + field] = value

    def snapshot(self) -> bytes:
        """Return all words. While they do not change, no worker makes progress."""
        return self.words.tobytes()

    def barrier(self, worker: int, meeting: int) -> None:
        """Wait until all workers are at `meeting`, a number that grows from call to call."""
        self.put(worker, ARRIVED, meeting)
        for peer in range(self.num_workers):
            self.wait(self.words, peer * STRIDE + ARRIVED, meeting)

    def wait(self, words: memoryview, index: int, value: int) -> None:
        """Wait until `words[index]` is at least `value`."""
        polls = SPINS if self.crowded else 0
        while words[index] < value:
            polls += 1
            if polls <= SPINS:
                continue
            if self.crowded and polls > SPINS + YIELDS:
                time.sleep(NAP)
            else:
                os.sched_yield()
