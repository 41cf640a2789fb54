"""Whether workers are stopped (SIGSTOP, a job control's Ctrl-Z), and will not get on by waiting.

A worker that computes may take minutes for one op; one that the kernel says is stopped takes for
ever. What counts are looks, not seconds: where the parent was stopped too, it has not looked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import psutil

LOOKS = 100
"""Looks in a row that find a worker stopped, before it is given up: 10 s at a look each 0.1 s."""


class StoppedWorkers:
    """Counts looks that find a worker stopped."""

    def __init__(self) -> None:
        self._looks: Counter[int] = Counter()

    def look(self, pids: Iterable[int | None]) -> int | None:
        """The first of these processes that every look has found stopped for long, or None."""
        for pid in pids:
            if pid is None:
                continue
            self._looks[pid] = self._looks[pid] + 1 if _is_stopped(pid) else 0
            if self._looks[pid] >= LOOKS:
                return pid
        return None


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
