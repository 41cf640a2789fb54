"""Forked workers meet and form a group."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from gnnplace.runtime.meeting import join_group, meeting_place
from gnnplace.runtime.workers import Task, run_tasks


def test_forked_workers_add_up_and_meet_again_elsewhere() -> None:
    """Two groups one after the other, each at a place of its own."""
    for count in (2, 3):
        with meeting_place() as place:
            tasks = [
                Task(f"process {k}", lambda k=k, n=count, p=place: _sum(p, k, n))
                for k in range(count)
            ]
            assert run_tasks(tasks, timeout=60.0) == [count * (count + 1) / 2] * count


def _sum(place: int, rank: int, count: int) -> float:
    join_group(place, rank, count, timedelta(seconds=60))
    value = torch.tensor(rank + 1.0)
    dist.all_reduce(value)
    dist.destroy_process_group()
    return float(value)
