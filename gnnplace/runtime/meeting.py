"""Where workers that are forked here meet to form a process group: a file in memory without a name.

A `TCPStore` in the parent has a thread, which may hold the lock of the resolver at the instant of a
fork; the worker then waits for it for ever. A file store has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist


@contextmanager
def meeting_place() -> Iterator[int]:
    """The descriptor of a meeting place, which forked workers have too; closed at the end."""
    place = os.memfd_create("gnnplace meeting place")
    try:
        yield place
    finally:
        os.close(place)


def join_group(place: int, rank: int, count: int, timeout: timedelta) -> None:
    """Waits for the others at a meeting place and forms a gloo group with them.

    Args:
        place: A descriptor, as `meeting_place` gives it.
        rank: Number of this process.
        count: Of all processes.
        timeout: Of the meeting and of whatever the group does.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file:///proc/self/fd/{place}",
        rank=rank,
        world_size=count,
        timeout=timeout,
    )
