"""A process group on this machine, and functions that time steps in it.

Every process is a worker (`tasks`) and a member of one gloo group. Steps that are compared run in
turns, so that a busy machine slows all of them equally.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gnnplace.run.workers.tasks import (
    Task,
    available_cores,
    check_backward_can_fork,
    run_tasks,
)
from gnnplace.run.workers.transport import join_group, meeting_place
from gnnplace.tracing import StepModule
from gnnplace.zoo import Workload

WARM_UP = 2  # steps before those that are timed
Answer = TypeVar("Answer")
Seconds = dict[str, list[float]]
"""Of every step, by what ran."""


def run_group(
    work: Callable[[int], Answer],
    names: Sequence[str],
    *,
    timeout: float,
    progress: Callable[[], bytes] = bytes,
    doing: Callable[[int], str] = lambda worker: "",
) -> list[Answer]:
    """Return what processes that form a group answer, in their order.

    Args:
        work: Called in every process with its number; its answer goes through a pipe.
        names: Names of the processes, for messages.
        timeout: The timeout, as `run_tasks` takes it. What the group does may take twice as long.
        progress: A snapshot that changes while processes get on.
        doing: What a process is doing now.

    Raises:
        ExecutionError: a process died, hung or failed.
        UnsupportedError: see `check_backward_can_fork`.
    """
    check_backward_can_fork()
    cores = available_cores()
    tasks = []
    with meeting_place() as place:
        for rank, name in enumerate(names):
            job = partial(
                _in_group, work, place, rank, len(names), timedelta(seconds=2 * timeout)
            )
            tasks.append(
                Task(name, job, cores[rank] if len(names) <= len(cores) else None)
            )
        return run_tasks(tasks, timeout=timeout, progress=progress, doing=doing)


def _in_group(
    work: Callable[[int], Answer], place: int, rank: int, count: int, timeout: timedelta
) -> Answer:
    logging.getLogger("torch").setLevel(logging.ERROR)  # what gloo lacks is no news
    join_group(place, rank, count, timeout)
    answer = work(rank)
    dist.destroy_process_group()  # after a failure others would fail of it, and first
    return answer


def meet() -> None:
    """Wait for the other processes of the group, if there is one."""
    if dist.is_initialized():
        dist.barrier()


def time_steps(
    runs: Mapping[str, Callable[[], Any] | None], steps: int, *, warm_up: int = WARM_UP
) -> tuple[Seconds, Seconds]:
    """Return the wall and CPU seconds of every step. The runs take turns.

    Args:
        runs: What a step is, by name, the same names in all processes; None: this one waits.
        steps: The number of timed steps.
        warm_up: Steps before these.
    """
    wall: Seconds = {name: [] for name in runs}
    cpu: Seconds = {name: [] for name in runs}
    for turn in range(warm_up + steps):
        for name, run in runs.items():
            meet()
            start = time.perf_counter()
            cpu_start = time.process_time()
            if run is not None:
                run()
            if turn >= warm_up:
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - cpu_start)
    return wall, cpu


class Replica(nn.Module):
    """The baseline of all runs: a model under DistributedDataParallel; called without arguments.

    Args:
        workload: Model and loss; the model is copied.
        inputs: This process's share of the batch.

    Attributes:
        step: Model and loss, on this process.
    """

    def __init__(self, workload: Workload, inputs: object) -> None:
        super().__init__()
        self.step = StepModule(copy.deepcopy(workload.model), workload.loss, inputs)
        self._replica = DistributedDataParallel(self.step)

    def forward(self) -> torch.Tensor:
        """Return the loss of this process's share."""
        return self._replica(*self.step.inputs())
