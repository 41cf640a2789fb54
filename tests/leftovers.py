"""What a test leaves behind: nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch


@contextmanager
def nothing_left() -> Iterator[None]:
    """One thread of torch, and in the end no process that was not there before."""
    torch.set_num_threads(1)
    before = psutil.Process().children(recursive=True)
    yield
    gc.collect()
    left = [one for one in psutil.Process().children(recursive=True) if one not in before]
    assert left == [], [one.cmdline() for one in left]
