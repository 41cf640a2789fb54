"""Real processes with a gloo group, for tests."""

from __future__ import annotations

import faulthandler
from datetime import timedelta

import torch
import torch.distributed as dist

from gnnplace.run.workers.tasks import Task, run_tasks
from gnnplace.run.workers.transport import join_group, meeting_place

TIMEOUT = 150.0


def on_processes(count, work):
    """What ``work(rank)`` returns in each of ``count`` processes that form a group."""
    with meeting_place() as place:
        tasks = [
            Task(
                f"process {rank}", lambda rank=rank: _in_group(rank, count, place, work)
            )
            for rank in range(count)
        ]
        return run_tasks(tasks, timeout=TIMEOUT)


def _in_group(rank, count, place, work):
    faulthandler.dump_traceback_later(TIMEOUT - 50.0)  # says where it hangs
    torch.set_num_threads(1)
    join_group(place, rank, count, timedelta(seconds=TIMEOUT))
    try:
        return work(rank)
    finally:
        dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()
