"""What a test leaves behind: nothing."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

import psutil
import torch

SHARED = "/dev/shm"
LONGEST = 60.0  # seconds that a test beside this one may share memory by name


def workers() -> list[psutil.Process]:
    """Return the processes that this one started, and those that they started.

    Python's tracker of shared memory is none of them: it may run since an earlier test, and stays.
    """
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.pid != tracker]


@contextmanager
def nothing_left() -> Iterator[None]:
    """One thread of torch, and in the end no process that was not there before."""
    torch.set_num_threads(1)
    before = workers()
    yield
    gc.collect()
    left = [one for one in workers() if one not in before]
    assert left == [], [one.cmdline() for one in left]


@contextmanager
def nothing_shared() -> Iterator[None]:
    """In the end no named shared memory that was not there before.

    Other tests run at the same time, and their pools have named semaphores: what is new is waited
    for until they are done. What this test has left stays.
    """
    before = set(os.listdir(SHARED))
    yield
    left, until = set(os.listdir(SHARED)) - before, time.monotonic() + LONGEST
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left &= set(os.listdir(SHARED))
    assert left == set(), sorted(left)
