"""A hybrid step run for real: data-parallel groups of model-parallel devices, beside DDP.

The baseline is PyTorch's own data parallelism. Every process trains a replica on its share of the
batch under `DistributedDataParallel` (gloo on CPUs); a step is forward, backward with the
all-reduce in it, and the optimizer's update. Its gradients are compared with one process that
accumulates over the same shares.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gnnplace.costs.profiling.profiler import profile_model
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InputError
from gnnplace.execution.eager import torch_optimizer
from gnnplace.execution.executor import execute
from gnnplace.execution.result import Execution
from gnnplace.execution.running import eager_times
from gnnplace.execution.setting import execution_mode
from gnnplace.execution.verification import (
    WholeBatch,
    beside_whole_batch,
    compare,
    reference_step,
)
from gnnplace.plans.hybrid.fabric import ClusterCopies
from gnnplace.plans.hybrid.replicas import replicated, replicated_placement, replicated_problem
from gnnplace.plans.hybrid.study import Search
from gnnplace.policy.placing import place
from gnnplace.policy.warming import warm
from gnnplace.problem.cluster import Cluster
from gnnplace.runtime.comparison import Verification
from gnnplace.runtime.rig import Replica, run_group, time_steps
from gnnplace.runtime.workers import available_cores
from gnnplace.simulation import simulate
from gnnplace.tracing import load
from gnnplace.tracing.loading import cut, shares_of
from gnnplace.tracing.microbatching import microbatched, with_inputs
from gnnplace.tracing.models import capture_model, say_batch
from gnnplace.tracing.optimizers import optimizer as find_optimizer
from gnnplace.tracing.program import Program
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Running:
    """How a hybrid step is run.

    Attributes:
        groups: the number of data-parallel groups.
        devices: devices of a group.
        microbatches: shares of a group's batch.
        steps: how many steps are timed.
        mode: ``auto``, ``measured`` or ``emulated``.
        transport: ``shm`` (shared memory) or ``gloo`` (TCP).
        timeout: seconds without progress after which the run is given up.
    """

    groups: int = 2
    devices: int = 1
    microbatches: int = 1
    steps: int = 10
    mode: str = "auto"
    transport: str = "shm"
    timeout: float = 120.0


@dataclass(frozen=True, eq=False)
class HybridRun:
    """A hybrid step that was run.

    Attributes:
        groups: the number of data-parallel groups.
        devices: the devices of a group.
        predicted: seconds of the step, simulated with what groups exchange.
        alone: seconds of one group's placed step, predicted.
        execution: the execution of all workers.
        verification: gradients and every group's parameters against one device that accumulates
            over the same shares.
        whole: the same against eager PyTorch on the whole batch.
        ddp: PyTorch's DistributedDataParallel on as many shares, beside it.
        eager: seconds of an eager step of the whole batch, by number of cores.
    """

    groups: int
    devices: int
    predicted: float
    alone: float
    execution: Execution
    verification: Verification
    ddp: DataParallelRun
    eager: dict[int, float]
    whole: WholeBatch = field(default_factory=WholeBatch)

    @property
    def passed(self) -> bool:
        """Whether it computed what one device and what eager PyTorch compute."""
        return self.verification.passed and self.whole.passed


def execute_hybrid(
    model: str,
    cluster: str | Cluster,
    *,
    running: Running | None = None,
    search: Search | None = None,
    progress: Progress = lambda line: None,
) -> HybridRun:
    """Captures, places one group, replicates it, runs and checks it, and runs DDP beside it.

    Args:
        model: a model by its name.
        cluster: as everywhere; of this machine.
        running: how many groups, devices and steps, and in which mode.
        search: how a group's step is placed, and how the model is captured.
        progress: called with a line when something begins that takes seconds.

    Raises:
        InputError: too few devices, or a batch that cannot be cut.
        ExecutionError: a worker died, hung or failed.
    """
    running, search = running or Running(), search or Search()
    groups, devices, cut = running.groups, running.devices, running.microbatches
    fabric = ClusterCopies(_cluster(cluster, groups * devices))
    base = capture_model(model, options=replace(search.capture, microbatches=groups * cut))
    say_batch(base, progress)
    options = replace(search.capture, microbatches=cut)
    problem = profile_model(base, fabric.group(0, devices), options=options, progress=progress)
    warm([search.placer], progress=progress, num_ops=problem.num_ops)
    placed = place(problem, placer=search.placer, budget=search.budget, seed=search.seed)
    whole = replicated_problem(problem, groups, fabric.group(0, groups * devices))
    placement = replicated_placement(problem, placed.placement, groups)
    run = execute(
        with_shares(replicated(base, groups, cut), model),
        whole,
        placement,
        steps=running.steps,
        mode=execution_mode(placement, whole) if running.mode == "auto" else running.mode,
        transport=running.transport,
        timeout=running.timeout,
    )
    predicted = simulate(whole, placement).step_time
    checked = check(base, groups * cut, model, groups, run)
    progress(f"running DistributedDataParallel on {groups} workers")
    ddp = run_data_parallel(
        lambda: load(model),
        groups,
        optimizer=search.capture.optimizer,
        steps=running.steps,
        timeout=running.timeout,
    )
    eager = eager_times(model, options)
    beside = beside_whole_batch(base, run.first)
    return HybridRun(groups, devices, predicted, placed.step_time, run, checked, ddp, eager, beside)


def _cluster(cluster: str | Cluster, devices: int) -> Cluster:
    found = resolve_cluster(cluster)
    if found.num_devices < devices:
        raise InputError(
            f"--replicas x --group-devices: {devices} devices; the cluster has {found.num_devices}"
        )
    return found


def with_shares(program: Program, model: str) -> Program:
    """A cut program with the shares of the model's whole batch as its inputs."""
    shares = shares_of(load(model), program.microbatches)
    return with_inputs(program, tuple(_flat(share) for share in shares))


def _flat(share: Any) -> tuple[torch.Tensor, ...]:

    return tuple(x for x in pytree.tree_leaves(share) if isinstance(x, torch.Tensor))


def check(base: Program, shares: int, model: str, groups: int, run: Execution) -> Verification:
    """Gradients and parameters of all groups against one device accumulating over the shares.

    Buffers, such as those of batch norm, are a group's own and are not compared.
    """
    one = replace(reference_step(with_shares(microbatched(base, shares), model)), buffers={})
    expected = replace(one, parameters=_each(one.parameters, groups))
    expected = replace(expected, optimizer=_each(one.optimizer, groups))
    if run.first is None:
        raise InputError("execution: it has no outputs")
    return compare(replace(run.first, buffers={}), expected)


def _each(tensors: dict[str, torch.Tensor], groups: int) -> dict[str, torch.Tensor]:
    return {f"{name}@{g}": tensor for g in range(groups) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class DataParallelRun:
    """Measured data parallelism.

    Attributes:
        workers: The number of processes.
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
        steps: How many steps are timed.
        timeout: Seconds that all of it may take.

    Raises:
        InputError: fewer than two workers, no step, or a batch that cannot be cut.
        ExecutionError: a process died, hung or failed.
    """
    if workers < 2 or steps < 1:
        raise InputError(f"workers={workers}, steps={steps}: at least two workers and one step")
    cut(make(), workers)

    def work(rank: int) -> tuple[list[float], list[float], float]:
        workload = make()
        shares = shares_of(workload, workers)
        replica = Replica(workload, shares[rank])
        expected = _accumulated(workload, shares)
        update = torch_optimizer(find_optimizer(optimizer), replica.step)

        def step() -> None:
            update.zero_grad()
            _passes(replica)
            update.step()

        _passes(replica)
        error = _error(replica.step, expected)
        wall, cpu = time_steps({"ddp": step}, steps)
        return wall["ddp"], cpu["ddp"], error

    names = [f"process {rank}" for rank in range(workers)]
    walls, cpus, errors = zip(*run_group(work, names, timeout=timeout), strict=True)
    wall = tuple(max(times) for times in zip(*walls, strict=True))
    return DataParallelRun(
        workers=workers,
        cores=min(workers, len(available_cores())),
        step_time=median(wall),
        cpu_time=max(median(cpu) for cpu in cpus),
        steps=wall,
        error=max(errors),
    )


def _passes(replica: Replica) -> None:
    """A forward and a backward pass."""
    torch.manual_seed(0)
    replica().backward()


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
