"""``gnnplace hybrid MODEL --execute``: data-parallel groups of model-parallel devices, for real."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from rich.table import Table

from gnnplace import api
from gnnplace.cluster import Cluster
from gnnplace.commands import OPTIONS, console, say
from gnnplace.errors import InputError
from gnnplace.hybrid import Fabric
from gnnplace.report import seconds_text

if TYPE_CHECKING:
    import torch

    from gnnplace.execution import Execution, Verification
    from gnnplace.execution.data_parallel_run import DataParallelRun
    from gnnplace.tracing import Program


@dataclass(frozen=True, eq=False)
class HybridRun:
    """A hybrid step that was run.

    Attributes:
        groups: data-parallel.
        devices: of a group.
        predicted: seconds of the step, simulated with what groups exchange.
        alone: seconds of one group's placed step, predicted.
        execution: of all workers.
        verification: gradients and every group's parameters against one device that accumulates
            over the same shares.
    """

    groups: int
    devices: int
    predicted: float
    alone: float
    execution: Execution
    verification: Verification


def execute_hybrid(args: Namespace) -> int:
    """Runs groups x devices and DDP on as many shares; prints both. 1 if numbers are wrong."""
    from gnnplace.execution.data_parallel_run import run_data_parallel
    from gnnplace.tracing import load

    run = run_hybrid(args)
    say(f"running DistributedDataParallel on {args.replicas} workers")
    ddp = run_data_parallel(
        lambda: load(args.what),
        args.replicas,
        optimizer=args.optimizer,
        steps=args.steps,
        timeout=args.timeout,
    )
    eager = api.eager_step_times(args.what, capture_options(args, 1))
    if args.json:
        sys.stdout.write(json.dumps(_data(run, ddp, eager), allow_nan=False) + "\n")
    else:
        _print(args, run, ddp, eager)
    return 0 if run.verification.passed else 1


def run_hybrid(args: Namespace) -> HybridRun:
    """Captures, places one group, replicates it, runs and checks it.

    Raises:
        InputError: too few devices, or a batch that cannot be cut.
    """
    from gnnplace import execution
    from gnnplace.execution.data_parallel import (
        replicated,
        replicated_placement,
        replicated_problem,
    )

    groups, devices, cut = args.replicas, args.group_devices, _microbatches(args)
    fabric = Fabric(_cluster(args, groups * devices))
    base = api.capture(args.what, options=capture_options(args, groups * cut))
    options = capture_options(args, cut)
    problem = api.profile(base, fabric.group(0, devices), options=options, progress=say)
    api.warm([args.placer], progress=say)
    placed = api.place(problem, placer=args.placer, budget=args.budget, seed=args.seed)
    whole = replicated_problem(problem, groups, fabric.group(0, groups * devices))
    placement = replicated_placement(problem, placed.placement, groups)
    program = with_shares(replicated(base, groups, cut), args.what)
    mode = api.execution_mode(placement, whole) if args.mode == "auto" else args.mode
    run = execution.execute(
        program,
        whole,
        placement,
        steps=args.steps,
        mode=mode,
        transport=args.transport,
        timeout=args.timeout,
    )
    predicted = api.simulate(whole, placement).step_time
    checked = check(base, groups * cut, args.what, groups, run)
    return HybridRun(groups, devices, predicted, placed.step_time, run, checked)


def _microbatches(args: Namespace) -> int:
    text = "1" if args.microbatches is None else str(args.microbatches)
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--microbatches {text!r}: --execute runs one number of them")
    return int(text)


def capture_options(args: Namespace, microbatches: int) -> api.CaptureOptions:
    """The capture options among the arguments, with a number of micro-batches."""
    given = {key: getattr(args, key) for key in OPTIONS}
    return api.CaptureOptions(**given | {"microbatches": microbatches})


def _cluster(args: Namespace, devices: int) -> Cluster:
    if args.cluster is None:
        raise InputError("hybrid --execute: --cluster is needed, such as cpu:4")
    cluster = api.resolve_cluster(args.cluster)
    if cluster.num_devices < devices:
        raise InputError(
            f"--replicas x --group-devices: {devices} devices; the cluster has "
            f"{cluster.num_devices}"
        )
    return cluster


def with_shares(program: Program, model: str) -> Program:
    """A cut program with the shares of the model's whole batch as its inputs."""
    from gnnplace.execution.data_parallel_run import shares_of
    from gnnplace.tracing import load
    from gnnplace.tracing.microbatching import with_inputs

    shares = shares_of(load(model), program.microbatches)
    return with_inputs(program, tuple(_flat(share) for share in shares))


def _flat(share: Any) -> tuple[torch.Tensor, ...]:
    import torch
    from torch.utils import _pytree as pytree

    return tuple(x for x in pytree.tree_leaves(share) if isinstance(x, torch.Tensor))


def check(base: Program, shares: int, model: str, groups: int, run: Execution) -> Verification:
    """Gradients and parameters of all groups against one device accumulating over the shares.

    Buffers, such as those of batch norm, are a group's own and are not compared.
    """
    from gnnplace.execution.reference import reference_step
    from gnnplace.execution.verification import compare
    from gnnplace.tracing.microbatching import microbatched

    one = replace(reference_step(with_shares(microbatched(base, shares), model)), buffers={})
    expected = replace(one, parameters=_each(one.parameters, groups))
    expected = replace(expected, optimizer=_each(one.optimizer, groups))
    if run.first is None:
        raise InputError("execution: it has no outputs")
    return compare(replace(run.first, buffers={}), expected)


def _each(tensors: dict[str, torch.Tensor], groups: int) -> dict[str, torch.Tensor]:
    return {f"{name}@{g}": tensor for g in range(groups) for name, tensor in tensors.items()}


def _data(run: HybridRun, ddp: DataParallelRun, eager: dict[int, float]) -> dict[str, Any]:
    execution = run.execution
    return {
        "groups": run.groups,
        "group_devices": run.devices,
        "mode": execution.mode,
        "step_time": execution.step_time,
        "virtual_step_time": execution.virtual_step_time,
        "predicted": run.predicted,
        "predicted_group_alone": run.alone,
        "verified": run.verification.summary(),
        "bitwise": run.verification.bitwise,
        "ddp": {
            "workers": ddp.workers,
            "cores": ddp.cores,
            "step_time": ddp.step_time,
            "cpu_time": ddp.cpu_time,
            "gradient_error": ddp.error,
        },
        "eager_one_core": eager[1],
    }


def _print(args: Namespace, run: HybridRun, ddp: DataParallelRun, eager: dict[int, float]) -> None:
    execution = run.execution
    name = f"hybrid {run.groups} x {run.devices}"
    table = Table("one step of the whole batch", "seconds", "what it is", title=args.what)
    table.add_row("one device, eager", seconds_text(eager[1]), "measured, wall clock")
    what = f"measured, wall clock, {ddp.workers} workers on {ddp.cores} cores"
    table.add_row(f"DistributedDataParallel {ddp.workers} x 1", seconds_text(ddp.step_time), what)
    what = "measured, CPU time of the busiest worker, without waiting"
    table.add_row("", seconds_text(ddp.cpu_time), what)
    clock = "measured, wall clock" if execution.mode == "measured" else "emulated, virtual clock"
    table.add_row(name, seconds_text(execution.step_time), clock)
    table.add_row("", seconds_text(run.predicted), "predicted, with the exchange of gradients")
    table.add_row("", seconds_text(run.alone), "predicted, one group alone")
    out = console()
    out.print(table)
    out.print(f"{name}: {run.verification.summary()}, which accumulates over the same shares")
    out.print(f"DDP: gradients within {ddp.error:.2g} of accumulating over the same shares")
