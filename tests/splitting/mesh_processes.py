"""Real processes with a gloo group, for tests."""

from __future__ import annotations

import faulthandler
from datetime import timedelta

import torch
import torch.distributed as dist

from gnnplace.runtime.workers import Task, run_tasks

TIMEOUT = 150.0


def on_processes(count, work):
    """What ``work(rank)`` returns in each of ``count`` processes that form a group."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    tasks = [
        Task(f"process {rank}", lambda rank=rank: _in_group(rank, count, store.port, work))
        for rank in range(count)
    ]
    return run_tasks(tasks, timeout=TIMEOUT)


def _in_group(rank, count, port, work):
    faulthandler.dump_traceback_later(TIMEOUT - 50.0)  # says where it hangs
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=TIMEOUT)
    )
    try:
        return work(rank)
    finally:
        dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()
