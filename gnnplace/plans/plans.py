"""`gnnplace.plan`: how a model is trained on a cluster; and what a plan of one's own would take.

Where that is asked, the fastest plans run for a few steps on this machine, and the one that is
fastest there is taken. Plans that differ by ZeRO or the order of actions alone come in crowds, so
that of plans with the same stages and the same schedule, searched or not, the fastest alone is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.files import MOST
from gnnplace.plans.answers import find_baselines, find_plans, given_plan
from gnnplace.plans.given import check_spec, check_words
from gnnplace.plans.handover import handed_over
from gnnplace.plans.launch.importing import captured_spec, completed, named_model
from gnnplace.plans.launch.launch_plan import LaunchPlan
from gnnplace.plans.launch.registry import is_launch_file, read_launch_file
from gnnplace.plans.obeying import find_fewest, find_obeying
from gnnplace.plans.plan import Plan, TrialEntry
from gnnplace.plans.reading import read_plan as parsed_plan
from gnnplace.plans.run.apply import apply_plan
from gnnplace.plans.run.runner import PlanRunner
from gnnplace.plans.run.workers import run_plan
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import chain_of
from gnnplace.plans.spec import PlanSpec, parse_spec
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.gpus import figures
from gnnplace.problem.constraints.constraints import (
    Constraints,
    Given,
    as_constraints,
    cluster_with_headroom,
)

AUTO = "auto"
GOALS = TIME, FEWEST = "time", "gpus"
CAPTURING = "planning: capturing the model"
FURTHER = 20  # plans that are looked through for each that is run
STEPS = 5


@dataclass(frozen=True)
class Basis:
    """What is planned for, with what a given plan says of it.

    Attributes:
        model: by its name, or a module.
        batch: examples of a step; None: those of the example inputs.
        precision: of parameters and passes.
        optimizer: its name.
        given: words of a plan or a plan, to be priced; None: one is searched.
        told: what the words leave out of a launch file, each in one line.
    """

    model: str | nn.Module
    batch: int | None
    precision: str
    optimizer: str
    given: PlanSpec | Plan | None = None
    told: tuple[str, ...] = ()


def basis_of(
    given: str | Plan | LaunchPlan | None,
    model: str | nn.Module | None,
    cluster: Cluster,
    batch: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
) -> Basis:
    """What is planned for: what is asked, then what a given plan or launch file says.

    Args and errors are those of `plan_model`.
    """
    read = None if given is None else _read(given)
    told: tuple[str, ...] = ()
    if isinstance(read, Plan):
        own = read.file
        check_words(
            own, cluster=cluster.name, batch=batch, precision=precision, optimizer=optimizer
        )
        batch, precision, optimizer = own.batch, own.precision, own.optimizer
    elif isinstance(read, LaunchPlan):
        launched = completed(read, cluster.num_devices, batch)
        model = model or named_model(launched)
        batch, precision = launched.batch, precision or launched.precision
        optimizer = optimizer or launched.optimizer
        read, lines = captured_spec(launched)
        told = tuple(lines)
    if model is None:
        raise InputError("MODEL: is missing; only a launch file that has its sizes names one")
    return Basis(model, batch, precision or "32-true", optimizer or "adamw", read, told)


@dataclass(frozen=True, eq=False)
class JointPlan(Plan):
    """A plan that a model can be trained by."""

    def apply(
        self,
        model: nn.Module,
        inputs: Any = None,
        *,
        loss: Callable[..., torch.Tensor] | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        reduction: str | None = None,
    ) -> PlanRunner:
        """Makes a model train as the plan says; every process of torchrun calls this.

        There is a process for each device of the plan, in the order in which its stages list them.
        Parameters and buffers get the first process's numbers, so that all start alike; those that
        this process's stages do not read leave the model (for the device "meta").

        Args:
            model: what was planned, in training mode, in the type of the plan's precision.
            inputs: example inputs of any number of examples: a tensor, a tuple or a mapping, with
                what the loss reads of them at the end; None: of the shapes that the plan was made
                with, which its file has.
            loss: as it was planned with: called with the model's output and the last inputs; None:
                the output's own.
            device: that this process computes on; by default that of the model.
            seed: of dropout, the same on all processes.
            reduction: "mean" where a step's loss is the mean of those of its micro-batches, "sum"
                where it is their sum; None: as the plan says, which was proven.

        Returns:
            What steps: `runner.step(batch)` gives the loss and leaves gradients in
            `runner.parameters()`.

        Raises:
            FormatError: the plan's actions cannot run, with the first that is wrong.
            MismatchError: it is a plan of another model, or has meshes that cannot be run.
            InputError: there are more or fewer processes than devices.
        """
        return apply_plan(
            self, model, inputs, loss=loss, device=device, seed=seed, reduction=reduction
        )


def read_plan(path: str | Path) -> JointPlan:
    """Reads a plan's file.

    Raises:
        FormatError: naming the file, the key path and the fault, or the action that cannot run.
    """
    return _joint(parsed_plan(path))


def _joint(
    plan: Plan, cluster: str | Cluster = "", model: str | nn.Module | None = None
) -> JointPlan:
    """The plan, which names the model as it was asked for, and the file of the cluster."""
    file = plan.file
    if isinstance(cluster, str) and Path(cluster).is_file():
        file = file.model_copy(update={"cluster_file": cluster})
    if isinstance(model, str):
        file = file.model_copy(update={"model": model})
    return JointPlan(file, plan.reason, plan.notices, plan.op_placement, plan.trials)


def plan_model(
    model: str | nn.Module | None,
    cluster: str | Cluster,
    inputs: Any = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    batch: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    memory_limit: float | None = None,
    headroom: str | float | None = AUTO,
    budget: float = 10.0,
    top: int = 1,
    given: str | Plan | LaunchPlan | None = None,
    tries: int = 0,
    runnable: bool = False,
    accept_other_loss: bool = False,
    imbalance: float = 1.0,
    constraints: Given | None = None,
    goal: str = "time",
    rate: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[JointPlan]:
    """Plans a model's training on a cluster: stages, meshes, ZeRO, recomputation, actions.

    Nothing is allocated and nothing runs: times are predicted from tables of measured GPUs, on CPUs
    by a roofline.

    Args:
        model: `module:callable`, `hf:CONFIG`, a zoo name, or a module with `inputs`; None: of the
            sizes that the given launch file has.
        cluster: a preset's name, a YAML file, cpu:N, cuda:N, or a cluster.
        inputs: example inputs of a module.
        loss: the loss of a module; None: its output is the loss.
        batch: examples of a step over all devices; by default those of the given plan, or of the
            example inputs.
        precision: of parameters and passes, in Lightning's words; by default that of the given
            plan, or "32-true".
        optimizer: "sgd", "adam" or "adamw"; by default that of the given plan, or "adamw".
        memory_limit: bytes that every device has, instead of its own.
        headroom: what stays free on every device: "auto" is what allocator, libraries and NCCL
            take, "10%" or "2GB" is so much, None is what the cluster's file reserves.
        budget: seconds that the search may take.
        top: how many plans are answered at most.
        given: a plan of one's own, in words, or a plan or a launch file, read or by its path: its
            times instead of a search.
        tries: run so many of the fastest plans for a few steps on the devices that are here, and
            put the one whose measured step is shortest first; 0 runs nothing.
        runnable: search only plans that can be run: with as many replicas in every stage.
        accept_other_loss: cut the batch also where its loss is another one then.
        imbalance: how many times the mean's rows the fullest device of several with experts has.
        constraints: pins and forbids of layers, headroom, devices at most: ``Constraints``, a
            mapping or a YAML file.
        goal: "time", the fastest plan; or "gpus", the fastest on as few devices as hold any.
        rate: with "gpus": tokens a second (examples, where these are no tokens) to be reached.
        progress: is told what is done.

    Returns:
        Plans, the fastest first; one that says why not where nothing fits.

    Raises:
        InputError: what is wrong with model, cluster or options.
        CaptureError: naming the module that cannot be captured.
        MismatchError: the given plan is of another model or cluster.
        InfeasibleError: no plan obeys the constraints.
    """
    if top < 1 or goal not in GOALS or not budget >= 0:
        allowed = f"at least 1; one of {', '.join(GOALS)}; not negative"
        raise InputError(f"top {top}, goal {goal!r}, budget {budget}: {allowed}")
    if rate is not None and (goal != FEWEST or given is not None or not rate > 0):
        raise InputError(f"rate {rate:g}: is a positive number, for the goal {FEWEST!r} alone")
    asked = as_constraints(constraints)
    if given is not None and asked:
        raise InputError("--given: a plan of one's own is priced as it is; leave constraints out")
    if asked.max_memory:
        raise InputError("max-memory: a plan's devices are alike; give memory_limit")
    devices = _devices(resolve_cluster(cluster), memory_limit, asked.headroom or headroom)
    basis = basis_of(given, model, devices, batch, precision, optimizer)
    if isinstance(basis.given, PlanSpec):
        check_spec(basis.given, devices, basis.batch)
    if progress is not None:
        progress(CAPTURING)
    chain = chain_of(
        basis.model,
        devices,
        inputs,
        loss=loss,
        batch=basis.batch,
        precision=basis.precision,
        optimizer=basis.optimizer,
        accept_other_loss=accept_other_loss,
        imbalance=imbalance,
    )
    model = basis.model
    if basis.given is not None:
        priced = given_plan(chain, devices, basis.given)
        priced = replace(priced, notices=(*priced.notices, *basis.told))
        return [_joint(priced, cluster, model)]
    if tries:
        check_trials(devices, model)
    most, runnable = max(top, FURTHER * tries), runnable or tries > 0
    found = _searched(
        chain, devices, asked, goal, rate,
        top=most, budget=budget, runnable=runnable, progress=progress,
    )  # fmt: skip
    if tries and isinstance(model, str):
        found = by_trial(found, model, tries, progress)
    found = found[:top]
    if memory_limit is None and not asked and goal == TIME:
        named = cluster if isinstance(cluster, str) else cluster.name
        told = None if headroom is None else str(headroom)
        other = handed_over(
            found[0], chain, devices, model, inputs, loss, named=named, headroom=told, budget=budget
        )
        found[0] = replace(found[0], op_placement=other)
    return [_joint(plan, cluster, model) for plan in found]


def compare_plans(
    model: str | nn.Module,
    cluster: str | Cluster,
    inputs: Any = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    batch: int | None = None,
    precision: str = "32-true",
    optimizer: str = "adamw",
    memory_limit: float | None = None,
    headroom: str | float | None = AUTO,
    budget: float = 10.0,
    accept_other_loss: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Plan | None]:
    """The plan that is found beside what people do without one (`plans.search.search`).

    Args and errors are those of `plan_model`.

    Returns:
        The plan, as "plan", and every baseline by its name; None where nothing of it fits.
    """
    devices = _devices(resolve_cluster(cluster), memory_limit, headroom)
    if progress is not None:
        progress(CAPTURING)
    chain = chain_of(
        model, devices, inputs, loss=loss, batch=batch, precision=precision, optimizer=optimizer,
        accept_other_loss=accept_other_loss,
    )  # fmt: skip
    return find_baselines(chain, devices, budget=budget, progress=progress)


def _read(given: str | Plan | LaunchPlan) -> PlanSpec | Plan | LaunchPlan:
    """Words, or the plan of a file."""
    if not isinstance(given, str):
        return given
    if "=" in given and not Path(given).is_file():
        return parse_spec(given)
    if Path(given).suffix in ("", ".json", ".csv") and not is_launch_file(given):
        return parsed_plan(given)
    return read_launch_file(given)


def _searched(
    chain: Chain,
    cluster: Cluster,
    asked: Constraints,
    goal: str,
    rate: float | None,
    *,
    progress: Callable[[str], None] | None,
    **search: Any,
) -> list[Plan]:
    """The best plans by what is asked of devices and layers."""

    def find(own: Constraints, **told: Any) -> list[Plan]:
        return find_obeying(chain, cluster, own, **search, **told)

    if goal == FEWEST:
        return find_fewest(find, cluster, asked, rate=rate, progress=progress)
    if asked.patterns or asked.max_devices is not None:
        return find(asked, progress=progress)
    return find_plans(chain, cluster, progress=progress, **search)


def _devices(cluster: Cluster, memory_limit: float | None, headroom: str | float | None) -> Cluster:
    """The cluster with the memory that plans may use.

    Raises:
        InputError: devices whose times no table has.
    """
    for kind in cluster.kinds:
        figures(kind)
    if memory_limit is not None:
        if not 0 < memory_limit <= MOST:
            raise InputError(f"memory limit {memory_limit:g}: must be a positive number of bytes")
        cluster = cluster.each_device(memory=memory_limit)
    return cluster_with_headroom(cluster, headroom)


def check_trials(cluster: Cluster, model: str | nn.Module) -> None:
    """Refuses to try what is not here.

    Raises:
        InputError: the devices are not workers of this machine, or the model has no name.
    """
    odd = [d.name for d in cluster.devices if not d.name.startswith("cpu:")]
    if odd:
        raise InputError(
            f"--try: {odd[0]!r} is no worker of this machine; plan for cpu:{cluster.num_devices}, "
            "or leave --try out"
        )
    if not isinstance(model, str):
        raise InputError("--try: workers make the model by its name; give module:callable")


def by_trial(
    plans: Sequence[Plan],
    model: str,
    count: int,
    progress: Callable[[str], None] | None = None,
) -> list[Plan]:
    """Plans with those that were run first, the fastest by measured time at the head.

    Args:
        plans: the fastest first, by predicted times.
        model: the name of the model.
        count: how many plans are run.
        progress: is told what is run.
    """
    if not plans[0].feasible:
        return list(plans)
    ran = [(plan, _tried(plan, model, progress)) for plan in unlike(plans)[:count]]
    trials = tuple(trial for _, trial in ran)
    known = [(t.measured, plan) for plan, t in ran if t.measured is not None]
    first = [plan for _, plan in sorted(known, key=lambda pair: pair[0])]
    rest = [plan for plan in plans if plan not in first]
    ordered = [*first, *rest]
    return [replace(ordered[0], trials=trials), *ordered[1:]]


def unlike(plans: Sequence[Plan]) -> list[Plan]:
    """The first of plans with the same stages, micro-batches and schedule."""
    known: dict[object, Plan] = {}
    for plan in plans:
        stages = tuple((tuple(s.members), tuple(map(tuple, s.rows))) for s in plan.file.stages)
        key = (plan.file.microbatch_size, plan.file.schedule.partition(":")[0], stages)
        known.setdefault(key, plan)
    return list(known.values())


def _tried(plan: Plan, model: str, progress: Callable[[str], None] | None) -> TrialEntry:
    if progress is not None:
        progress(f"trying {plan.shape}")
    try:
        found = run_plan(plan, model, train=0, steps=STEPS)
    except GnnplaceError as error:
        return TrialEntry(plan.shape, plan.step_time, None, f"cannot be run: {error}")
    assert found is not None
    if not found.passed:
        return TrialEntry(plan.shape, plan.step_time, None, "its gradients are not one device's")
    return TrialEntry(plan.shape, plan.step_time, found.measured)
