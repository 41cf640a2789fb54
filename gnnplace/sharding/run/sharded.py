"""Runs a strategy over real processes: checks it against one device, times it beside DDP."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gnnplace.errors import InputError
from gnnplace.runtime.comparison import Difference, Verification, differences
from gnnplace.runtime.rig import Replica, Seconds, run_group, time_steps
from gnnplace.sharding.captured.layout import default_mesh
from gnnplace.sharding.run.apply import device_mesh
from gnnplace.sharding.run.measure import clear_gradients
from gnnplace.sharding.run.plan import ShardPlan
from gnnplace.sharding.run.planning import layer_graph, plan_measured, predicted_here
from gnnplace.tracing.loading import in_double, shares_of
from gnnplace.tracing.step import StepModule, default_loss
from gnnplace.zoo import Workload

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
        plan: The plan that was run.
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
        devices: The number of processes.
        plan: Run this plan instead of the best one by measured figures.
        steps: How many steps are timed.
        timeout: Seconds that all of it may take.
        memory_limit: Bytes that a device has.

    Raises:
        ExecutionError: a process died, hung or failed.
        MismatchError: the plan was made for another model.
    """

    def work(rank: int) -> _Found:
        workload = make()
        chosen, mesh = _planned(workload, plan, devices, memory_limit)
        exact = _errors(chosen, in_double(workload), mesh)
        one = StepModule(copy.deepcopy(workload.model), workload.loss, workload.inputs)
        ddp = _data_parallel(workload, devices, rank)
        sharded = _sharded(chosen, workload, mesh)  # the workload's own model is split
        expected = _gradients(one)
        single = _differences(_gradients(sharded), expected)
        together = {"sharded": sharded} | ({} if ddp is None else {"ddp": ddp})
        runs = {name: partial(_passes, step) for name, step in together.items()}
        return _Found(
            replace(chosen, loss=None, device_mesh=None),
            Verification(len(expected), tuple(exact)),
            max((d.relative for d in single), default=0.0),
            *time_steps({**runs, "one": None if rank else partial(_passes, one)}, steps),
        )

    found = run_group(work, [f"process {rank}" for rank in range(devices)], timeout=timeout)
    first = found[0]
    middle = {name: median(values) for name, values in first.wall.items()}
    return ShardRun(
        first.plan,
        first.verification,
        first.single,
        middle["sharded"],
        middle.get("ddp"),
        middle["one"],
        first.wall,
        {name: max(median(each.cpu[name]) for each in found) for name in first.wall},
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """What one process found: the plan that ran, how far it is off, and seconds of its steps."""

    plan: ShardPlan
    verification: Verification
    single: float
    wall: Seconds
    cpu: Seconds


def _planned(
    workload: Workload, plan: ShardPlan | None, devices: int, memory_limit: float | None
) -> tuple[ShardPlan, DeviceMesh]:
    """The plan that is run, with what it takes by figures measured here, and its mesh."""
    if plan is None:
        mesh = device_mesh(default_mesh(devices), None, "cpu")
        found = plan_measured(
            workload.model,
            workload.inputs,
            mesh,
            loss=workload.loss or default_loss,
            name=workload.name,
            memory_limit=memory_limit,
        )
        return found, mesh
    plan.check(workload.model)
    mesh = device_mesh(plan.mesh, None, "cpu")
    loss = (workload.loss or default_loss) if plan.with_loss else None
    layers = layer_graph(workload.model, workload.inputs, loss, workload.name)
    return predicted_here(plan, layers, mesh), mesh


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
    return differences(found, expected, TOLERANCE, nothing=NOTHING / TOLERANCE)


def _data_parallel(workload: Workload, devices: int, rank: int) -> nn.Module | None:
    """The same model under DistributedDataParallel; None where the batch cannot be cut."""
    try:
        inputs = shares_of(workload, devices)[rank]
    except InputError:
        return None
    return Replica(workload, inputs)


def _passes(step: nn.Module) -> None:
    """A forward and a backward pass."""
    clear_gradients(step)
    _call(step).backward()
