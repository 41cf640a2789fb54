"""PyTorch's own data parallelism on real worker processes: the baseline of hybrid training.

Every process trains a replica on its share of the batch under `DistributedDataParallel` (gloo on
CPUs); a step is forward, backward with the all-reduce in it, and the optimizer's update. Its
gradients are compared with one process that accumulates over the same shares.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gnnplace.errors import InputError
from gnnplace.execution.eager import torch_optimizer
from gnnplace.runtime.transport import join_group, meeting_place
from gnnplace.runtime.workers import Task, available_cores, run_tasks
from gnnplace.tracing.loading import cut, shares_of
from gnnplace.tracing.optimizers import optimizer as find_optimizer
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload

WARM_UP = 2


@dataclass(frozen=True)
class DataParallelRun:
    """Measured data parallelism.

    Attributes:
        workers: Processes.
        cores: Cores that they had.
        step_time: Median wall seconds of a step, of the slowest process in each.
        cpu_time: Median CPU seconds of a step in the busiest process; other programs on the
            machine do not slow it, waiting is not in it.
        steps: Wall seconds of each step.
        error: Largest difference of a gradient from accumulating over the same shares in one
            process, over the largest magnitude of that gradient.
    """

    workers: int
    cores: int
    step_time: float
    cpu_time: float
    steps: tuple[float, ...]
    error: float


def run_data_parallel(
    make: Callable[[], Workload],
    workers: int,
    *,
    optimizer: str = "sgd",
    steps: int = 10,
    timeout: float = 120.0,
) -> DataParallelRun:
    """Trains under DDP in `workers` processes and measures it.

    Args:
        make: Makes model, whole batch and loss; the same in every process.
        workers: Processes, each with an equal share of the batch.
        optimizer: "sgd" or "adamw".
        steps: To time.
        timeout: Seconds that all of it may take.

    Raises:
        InputError: fewer than two workers, no step, or a batch that cannot be cut.
        ExecutionError: a process died, hung or failed.
    """
    if workers < 2 or steps < 1:
        raise InputError(f"workers={workers}, steps={steps}: at least two workers and one step")
    cut(make(), workers)
    cores = available_cores()
    tasks = []
    with meeting_place() as place:
        for rank in range(workers):
            job = _Job(rank, workers, place, make, optimizer, steps, timeout)
            own = cores[rank] if workers <= len(cores) else None
            tasks.append(Task(f"process {rank}", job.run, own))
        found = run_tasks(tasks, timeout=timeout)
    wall = [max(times) for times in zip(*(each["wall"] for each in found), strict=True)]
    return DataParallelRun(
        workers=workers,
        cores=min(workers, len(cores)),
        step_time=median(wall),
        cpu_time=max(median(each["cpu"]) for each in found),
        steps=tuple(wall),
        error=max(each["error"] for each in found),
    )


@dataclass(frozen=True, eq=False)
class _Job:
    """What one process does."""

    rank: int
    workers: int
    place: int
    make: Callable[[], Workload]
    optimizer: str
    steps: int
    timeout: float

    def run(self) -> dict[str, Any]:
        """Joins the group, checks, measures."""
        torch.set_num_threads(1)
        join_group(self.place, self.rank, self.workers, timedelta(seconds=self.timeout))
        try:
            return self._run()
        finally:
            dist.destroy_process_group()

    def _run(self) -> dict[str, Any]:
        workload = self.make()
        shares = shares_of(workload, self.workers)
        mine = StepModule(copy.deepcopy(workload.model), workload.loss, shares[self.rank])
        expected = _accumulated(workload, shares)
        replica = DistributedDataParallel(mine)
        update = torch_optimizer(find_optimizer(self.optimizer), mine)
        _step(replica, mine)
        error = _error(mine, expected)
        wall, cpu = [], []
        for turn in range(WARM_UP + self.steps):
            dist.barrier()
            start, before = time.perf_counter(), time.process_time()
            update.zero_grad()
            _step(replica, mine)
            update.step()
            if turn >= WARM_UP:
                wall.append(time.perf_counter() - start)
                cpu.append(time.process_time() - before)
        return {"wall": wall, "cpu": cpu, "error": error}


def _step(replica: torch.nn.Module, step: StepModule) -> None:
    torch.manual_seed(0)
    replica(*step.inputs()).backward()


def _accumulated(workload: Workload, shares: list[Any]) -> dict[str, torch.Tensor]:
    """Gradients of one process over all shares, each weighted by its part of the batch."""
    model = copy.deepcopy(workload.model)
    for share in shares:
        step = StepModule(model, workload.loss, share)
        torch.manual_seed(0)
        (step(*step.inputs()) / len(shares)).backward()
    named = StepModule(model, workload.loss, shares[0]).named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}


def _error(step: StepModule, expected: dict[str, torch.Tensor]) -> float:
    worst = 0.0
    for name, parameter in step.named_parameters():
        if parameter.grad is not None:
            scale = float(expected[name].abs().max()) or 1.0
            worst = max(worst, float((parameter.grad - expected[name]).abs().max()) / scale)
    return worst
