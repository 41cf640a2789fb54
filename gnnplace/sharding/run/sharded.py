"""Runs a strategy over real processes: checks it against one device, times it beside DDP."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gnnplace.errors import InputError
from gnnplace.execution.verification import Difference, Verification
from gnnplace.runtime.transport import join_group, meeting_place
from gnnplace.runtime.workers import Task, available_cores, run_tasks
from gnnplace.sharding.captured.layout import default_mesh
from gnnplace.sharding.run.apply import device_mesh
from gnnplace.sharding.run.measure import clear_gradients
from gnnplace.sharding.run.plan import ShardPlan, plan_from_data, plan_to_data
from gnnplace.sharding.run.planning import layer_graph, plan_measured, predicted_here
from gnnplace.tracing.loading import in_double, shares_of
from gnnplace.tracing.step import StepModule, default_loss
from gnnplace.zoo import Workload

WARM_UP = 2
TOLERANCE = 1e-5
"""Largest error of a tensor, relative to its largest magnitude. The check is made in double
precision, where another order of sums makes 1e-13 of difference and a fault does not hide among
roundings (a model may compute some of it in single precision all the same)."""
NOTHING = 1e-9
"""What counts as nothing beside the largest gradient of all: some gradients are zero but for
rounding, such as that of a key's bias, which softmax takes out."""


@dataclass(frozen=True)
class ShardRun:
    """A strategy run for real.

    Attributes:
        plan: What was run.
        verification: Loss and gradients compared with one device, in double precision.
        single: The worst relative error in the model's own precision: rounding, multiplied where
            a deep model is sensitive.
        sharded: Measured wall seconds of a step, the median.
        ddp: Likewise of DistributedDataParallel; None where the batch cannot be cut equally.
        one: Likewise of one device alone.
        steps: Seconds of every step, by what ran.
        cpu: Median CPU seconds of a step in the busiest process, which other programs on the
            machine do not slow down; waiting for the others is not in it.
    """

    plan: ShardPlan
    verification: Verification
    single: float
    sharded: float
    ddp: float | None
    one: float
    steps: dict[str, list[float]]
    cpu: dict[str, float]


def run_sharded(
    make: Callable[[], Workload],
    devices: int,
    *,
    plan: ShardPlan | None = None,
    steps: int = 10,
    timeout: float = 300.0,
    memory_limit: float | None = None,
) -> ShardRun:
    """Plans with measured figures, runs and measures over processes on this machine.

    Args:
        make: Makes model, inputs and loss; the same in every process.
        devices: Processes.
        plan: Run this plan instead of the best one by measured figures.
        steps: To time.
        timeout: Seconds that all of it may take.
        memory_limit: Bytes that a device has.

    Raises:
        ExecutionError: a process died, hung or failed.
        MismatchError: the plan was made for another model.
    """
    given = None if plan is None else plan_to_data(plan)
    cores = available_cores()
    tasks = []
    with meeting_place() as place:
        for rank in range(devices):
            job = _Job(rank, devices, place, make, given, steps, timeout, memory_limit)
            core = cores[rank] if devices <= len(cores) else None
            tasks.append(Task(f"process {rank}", job.run, core))
        found = run_tasks(tasks, timeout=timeout)[0]
    return _result(found)


def _result(found: dict[str, Any]) -> ShardRun:
    different = tuple(Difference(*entry) for entry in found["different"])
    times = found["steps"]
    middle = {name: median(values) for name, values in times.items()}
    return ShardRun(
        plan_from_data(found["plan"], "the plan"),
        Verification(found["tensors"], different),
        found["single"],
        middle["sharded"],
        middle.get("ddp"),
        middle["one"],
        times,
        found["cpu"],
    )


@dataclass(frozen=True, eq=False)
class _Job:
    """What one process does."""

    rank: int
    devices: int
    place: int
    make: Callable[[], Workload]
    plan: Any
    steps: int
    timeout: float
    memory_limit: float | None

    def run(self) -> dict[str, Any]:
        join_group(self.place, self.rank, self.devices, timedelta(seconds=self.timeout))
        logging.getLogger("torch").setLevel(logging.ERROR)  # what gloo lacks is no news
        try:
            return self._run()
        finally:
            dist.destroy_process_group()

    def _run(self) -> dict[str, Any]:
        workload = self.make()
        shape = default_mesh(self.devices)
        plan = None if self.plan is None else plan_from_data(self.plan, "the plan")
        if plan is not None:
            plan.check(workload.model)
            shape = plan.mesh
        mesh = device_mesh(shape, None, "cpu")
        if plan is not None:
            loss = (workload.loss or default_loss) if plan.with_loss else None
            layers = layer_graph(workload.model, workload.inputs, loss, workload.name)
            plan = predicted_here(plan, layers, mesh)
        plan = plan or plan_measured(
            workload.model,
            workload.inputs,
            mesh,
            loss=workload.loss or default_loss,
            name=workload.name,
            memory_limit=self.memory_limit,
        )
        exact = _errors(plan, in_double(workload), mesh)
        one = StepModule(copy.deepcopy(workload.model), workload.loss, workload.inputs)
        ddp = _data_parallel(workload, self.devices, self.rank)
        sharded = _sharded(plan, workload, mesh)
        expected = _gradients(one)
        single = _differences(_gradients(sharded), expected)
        wall, cpu = _times({"sharded": sharded, "ddp": ddp}, one, self.rank, self.steps)
        return {
            "plan": plan_to_data(plan),
            "tensors": len(expected),
            "different": [(d.name, d.absolute, d.relative, d.tolerance) for d in exact],
            "single": max((d.relative for d in single), default=0.0),
            "steps": wall,
            "cpu": _busiest(cpu),
        }


def _errors(plan: ShardPlan, workload: Workload, mesh: DeviceMesh) -> list[Difference]:
    """How far a split model's loss and gradients are from one device's."""
    one = StepModule(copy.deepcopy(workload.model), workload.loss, workload.inputs)
    return _differences(_gradients(_sharded(plan, workload, mesh)), _gradients(one))


def _sharded(plan: ShardPlan, workload: Workload, mesh: DeviceMesh) -> nn.Module:
    """The workload's model, split, as a step."""
    model = plan.apply(workload.model, mesh, loss=workload.loss or default_loss)
    if plan.with_loss:
        return _Sharded(model, workload)
    return StepModule(model, workload.loss, workload.inputs)


class _Sharded(nn.Module):
    """A split model with its inputs, called like a step."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        super().__init__()
        self.model = model
        self.given = workload.inputs

    def forward(self) -> torch.Tensor:
        if isinstance(self.given, dict):
            return self.model(**self.given)
        return self.model(*self.given)  # type: ignore[misc]


def _call(step: nn.Module) -> torch.Tensor:
    return step(*step.inputs()) if isinstance(step, StepModule) else step()


def _gradients(step: nn.Module) -> dict[str, torch.Tensor]:
    """Loss and gradients of one step, whole; what is random is the same in all."""
    torch.manual_seed(0)
    loss = _call(step)
    loss.backward()
    found = {"loss": loss.detach()}
    for name, parameter in step.named_parameters():
        if parameter.grad is not None:
            made = parameter.grad
            whole = made.full_tensor() if isinstance(made, DTensor) else made.clone()
            found[f"gradient of {name.removeprefix('model.')}"] = whole
    clear_gradients(step)
    return found


def _differences(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> list[Difference]:
    if found.keys() != expected.keys():
        odd = sorted(found.keys() ^ expected.keys())
        raise InputError(f"{odd[0]}: only one of the split model and one device has it")
    largest = max((float(t.abs().max()) for n, t in expected.items() if n != "loss"), default=0.0)
    different = []
    for name, tensor in expected.items():
        other = found[name]
        if torch.equal(other, tensor):
            continue
        absolute = float((other.double() - tensor.double()).abs().max())
        absolute = float("inf") if absolute != absolute else absolute
        scale = max(float(tensor.abs().max()), NOTHING / TOLERANCE * largest)
        different.append(Difference(name, absolute, absolute / (scale or 1.0), TOLERANCE))
    return sorted(different, key=lambda d: -d.relative)


def _data_parallel(workload: Workload, devices: int, rank: int) -> nn.Module | None:
    """The same model under DistributedDataParallel, on a share of the batch."""
    try:
        inputs = shares_of(workload, devices)[rank]
    except InputError:
        return None
    step = StepModule(copy.deepcopy(workload.model), workload.loss, inputs)
    return _Called(DistributedDataParallel(step), step.inputs())


class _Called(nn.Module):
    """A module with its inputs."""

    def __init__(self, module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.module = module
        self.given = given

    def forward(self) -> torch.Tensor:
        return self.module(*self.given)


def _times(
    together: dict[str, nn.Module | None], one: nn.Module, rank: int, steps: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Wall and CPU seconds of every step.

    All take turns, so that a busy machine slows all alike; one device works while others wait.
    """
    names = [*(name for name, step in together.items() if step), "one"]
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(WARM_UP + steps):
        for name in names:
            step = together.get(name) or one
            dist.barrier()
            seconds = (0.0, 0.0) if name == "one" and rank else _seconds(step)
            if turn >= WARM_UP:
                wall[name].append(seconds[0])
                cpu[name].append(seconds[1])
    return wall, cpu


def _seconds(step: nn.Module) -> tuple[float, float]:
    clear_gradients(step)
    start, before = time.perf_counter(), time.process_time()
    _call(step).backward()
    return time.perf_counter() - start, time.process_time() - before


def _busiest(cpu: dict[str, list[float]]) -> dict[str, float]:
    """Median CPU seconds of a step, of the process that needs the most."""
    mine = {name: median(values) for name, values in cpu.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {name: max(process[name] for process in everyone) for name in mine}
