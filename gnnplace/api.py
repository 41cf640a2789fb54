"""The verbs as functions: ``capture, profile, place, simulate, execute, compare, convert``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnplace import warming
from gnnplace.best import make_placer as make_placer
from gnnplace.best import placer_names as placer_names
from gnnplace.best import shown_placers
from gnnplace.cluster import Cluster, Device
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.formats import convert as convert
from gnnplace.microbatching import with_microbatches
from gnnplace.placement import Placement
from gnnplace.placement import placed_microbatches as placed_microbatches
from gnnplace.placement import read_placement_for as read_placement_for
from gnnplace.placers import Exact, Placer, Result, SearchSpace
from gnnplace.placers.throughput import throughput_placer as throughput_placer
from gnnplace.problem import Problem, read_problem
from gnnplace.simulation import simulate as simulate
from gnnplace.targets import on_cluster as on_cluster
from gnnplace.targets import resolve_cluster as resolve_cluster

# The rooms that need torch are imported where they are used: simulating, converting and placing
# with classical placers should not wait for it.
if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from gnnplace.execution import Execution, Verification
    from gnnplace.execution.shard_plan import ShardPlan
    from gnnplace.measurements import MeasurementStore
    from gnnplace.runtime.hosts import Hosts
    from gnnplace.sharding.captured_costs import MeshMachine
    from gnnplace.tracing import Program
    from gnnplace.zoo import Workload

Progress = Callable[[str], None]
DEFAULT_BUDGET = 2.0
HOST_MEMORY = 1e12  # Bytes: a captured graph is not yet meant for any machine.
TIME, THROUGHPUT = "time", "throughput"


@dataclass(frozen=True)
class CaptureOptions:
    """How a model is captured and grouped; a placement is valid for the same options alone.

    Attributes:
        optimizer: ``sgd`` or ``adamw``.
        dtype: ``float32`` or ``bfloat16``.
        forward_only: inference instead of a training step.
        groups: ops of the problem to aim at.
        microbatches: shares that the batch is cut into.
    """

    optimizer: str = "sgd"
    dtype: str = "float32"
    forward_only: bool = False
    groups: int = 200
    microbatches: int = 1

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise InputError(f"groups {self.groups}: must be a positive number")
        if self.microbatches < 1:
            raise InputError(f"microbatches {self.microbatches}: must be a positive number")


@dataclass(frozen=True, eq=False)
class Executed:
    """A placement that was run, and whether it computed what one device computes.

    Attributes:
        run: its name in the store of measurements; None if it was not kept.
        fault: why the store took no more of it; empty if it took all.
    """

    execution: Execution
    verification: Verification
    run: str | None = None
    fault: str = ""


def capture(
    model: str | nn.Module,
    inputs: Any = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    options: CaptureOptions | None = None,
    fake: bool = False,
) -> Program:
    """Captures a model's training step (or inference) at 1/M of its batch.

    Args:
        model: ``module:callable``, ``hf:CONFIG``, a zoo name, or a module with ``inputs``.
        inputs: example inputs of a module.
        loss: as ``gnnplace.tracing.capture`` takes it; for a module.
        options: optimizer, precision, micro-batches.
        fake: never allocate the model's tensors; the program cannot be executed then.

    Raises:
        InputError: there is no such model, or its batch cannot be cut.
        CaptureError: naming the module and the line that cannot be captured.
    """
    from gnnplace import tracing

    options = options or CaptureOptions()
    workload = _workload(model, inputs, loss, options.microbatches, fake)
    return tracing.capture(
        workload.model,
        workload.inputs,
        loss=workload.loss,
        optimizer=options.optimizer,
        dtype=options.dtype,
        forward_only=options.forward_only,
        name=workload.name,
    )


def _workload(model: str | nn.Module, inputs: Any, loss: Any, share: int, fake: bool) -> Workload:
    from gnnplace import tracing
    from gnnplace.zoo import Workload

    if isinstance(model, str):
        return tracing.load(model, share=share, fake=fake)
    if inputs is None:
        raise InputError("capture: example inputs are needed with a module")
    given = inputs if isinstance(inputs, dict | tuple) else (inputs,)
    workload = Workload(type(model).__name__, model, given, loss)
    return tracing.cut(workload, share) if share > 1 else workload


def profile(
    model: str | Program,
    cluster: str | Cluster = "auto",
    *,
    options: CaptureOptions | None = None,
    progress: Progress | None = None,
) -> Problem:
    """A model on a cluster as a problem, with measured op times where the devices are here.

    Args:
        model: as ``capture`` takes it, or a program captured at 1/M of the batch.
        cluster: as ``resolve_cluster`` takes it.
        options: as for ``capture``.
        progress: called with a line when something begins that takes seconds.
    """
    from gnnplace import profiling

    options, cluster = options or CaptureOptions(), resolve_cluster(cluster)
    if isinstance(model, str):
        # Where nothing can be measured nothing needs to be allocated, however large the model.
        model = capture(model, options=options, fake=not profiling.any_local(cluster))
    return profiling.profile(
        model,
        cluster,
        groups=options.groups,
        microbatches=options.microbatches,
        progress=progress,
    )


def place(
    problem: Problem,
    *,
    placer: str = "best",
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    order: str | None = None,
    objective: str = TIME,
    space: SearchSpace | None = None,
    checkpoint: str | None = None,
    workers: int = 1,
) -> Result:
    """Finds devices and sequences for a problem.

    Args:
        problem: what to place; cut it with ``with_microbatches`` for pipelines.
        placer: one of ``placer_names()``.
        budget: seconds to search, from here on.
        seed: of all randomness.
        order: traversal order of the policy.
        objective: ``time``: seconds of one step; ``throughput``: seconds between two pipelined
            steps (the result is a ``ThroughputResult``), of ``throughput_placer``.
        space: the problem's search space, if there is one already.
        checkpoint: folder of the policy, of placers that have one; None takes the package's.
        workers: threads of the solver, where there is one.

    Raises:
        InputError: an unknown placer, order or objective, or no worker.
        UnsupportedError, InfeasibleError: see ``Placer.place``.
    """
    if budget < 0:
        raise InputError(f"budget {budget}: must not be negative")
    if objective == THROUGHPUT:
        made: Placer = throughput_placer(placer, workers, order, checkpoint)
    elif objective == TIME:
        made = make_placer(placer, order, checkpoint)
    else:
        raise InputError(f"objective {objective!r}: must be 'time' or 'throughput'")
    if workers < 1:
        raise InputError(f"workers {workers}: must be a positive number")
    if isinstance(made, Exact):
        made = Exact(workers)
    return made.place(problem, budget=budget, seed=seed, space=space)


def warm(
    names: Iterable[str] | None = None, objective: str = TIME, progress: Progress | None = None
) -> None:
    """Compiles, or loads from disk, the kernels of placers, so that no budget has to pay for it."""
    warming.warm(names or shown_placers(), objective, progress)


def compare(
    problem: Problem,
    names: Iterable[str] | None = None,
    *,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Result | tuple[str, GnnplaceError]]:
    """Results of many placers on one problem; a placer that cannot stands with its error."""
    space = SearchSpace(problem)
    results: list[Result | tuple[str, GnnplaceError]] = []
    for name in names or shown_placers():
        if progress is not None:
            progress(f"placing with {name}")
        try:
            results.append(place(problem, placer=name, budget=budget, seed=seed, space=space))
        except GnnplaceError as error:
            results.append((name, error))
    return results


def execute(
    model: str | Program,
    problem: Problem,
    placement: Placement,
    *,
    options: CaptureOptions | None = None,
    steps: int = 10,
    mode: str = "auto",
    transport: str = "shm",
    timeout: float = 120.0,
    store: MeasurementStore | None = None,
    source: str = "execute",
    label: str | None = None,
    hosts: Hosts | None = None,
) -> Executed:
    """Runs a placement for real and checks it against one process.

    Args:
        model: the captured model at 1/M of the batch, or its name.
        problem: what the placement is of.
        placement: devices and sequences.
        options: as the model was captured.
        steps: steps to time.
        mode: ``measured`` (a core a device), ``emulated`` (virtual clock), or ``auto``: measured
            where there are enough cores.
        transport: ``shm`` or ``gloo``.
        timeout: seconds without progress after which the run is given up.
        store: where to keep every measured step, and why the run failed if it fails.
        source: what makes the run, for the store.
        label: what the store calls the model; its name by default.
        hosts: several hosts that do the same; the first one verifies, keeps and reports.

    Raises:
        ExecutionError: a worker died, hung or failed.
    """
    from gnnplace import execution
    from gnnplace.execution.recording import recording
    from gnnplace.tracing.microbatching import microbatched

    options = options or CaptureOptions()
    program = capture(model, options=options) if isinstance(model, str) else model
    if problem.microbatches > 1 and program.microbatches == 1:
        program = microbatched(program, problem.microbatches)
    mode = execution_mode(placement, problem) if mode == "auto" else mode
    name = label or (model if isinstance(model, str) else program.name)
    about = {"mode": mode, "transport": transport, "source": source}
    with recording(store, name, problem, placement, **about) as recorder:
        run = execution.execute(
            program,
            problem,
            placement,
            steps=steps,
            mode=mode,
            transport=transport,
            timeout=timeout,
            observer=recorder.steps if recorder else None,
            hosts=hosts,
        )
        if hosts is not None and not hosts.first:
            return Executed(run, execution.Verification(0, ()))
        verification = execution.verify(program, run)
    if recorder is None:
        return Executed(run, verification)
    recorder.finish(verification)
    return Executed(run, verification, recorder.run, recorder.fault)


def shard(
    model: nn.Module,
    inputs: Any,
    mesh: int | DeviceMesh,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    machine: MeshMachine | None = None,
    memory_limit: float | None = None,
) -> ShardPlan:
    """The best way to split a model's layers over devices that DTensor can run.

    ``gnnplace.shard(model, inputs, mesh).apply(model)`` splits the model in place.

    Args:
        model: Any module; it is left as it is.
        inputs: Example inputs of the whole batch: positional, by keyword, or one tensor. With a
            ``loss``, its targets come last.
        mesh: A number of devices, or a torch ``DeviceMesh``.
        loss: One of the layers, if given: the split model then returns it.
        machine: Speeds to plan with. By default they are measured where there is a process group
            of the mesh's size, which every process of it must call then.
        memory_limit: Bytes that a device has.

    Raises:
        CaptureError: the model cannot be captured; names the module.
        InfeasibleError: nothing fits the memory.
        InputError: a mesh that is neither.
    """
    from gnnplace.execution.shard_planning import plan_model

    return plan_model(model, inputs, mesh, loss=loss, machine=machine, memory_limit=memory_limit)


def eager_step_times(model: str, options: CaptureOptions | None = None) -> dict[int, float]:
    """Measured seconds of an eager PyTorch step on the whole batch, by number of CPU cores."""
    from gnnplace import execution

    options = options or CaptureOptions()
    workload = _workload(model, None, None, 1, False)
    return execution.eager_step_times(
        workload.model, workload.inputs, loss=workload.loss, optimizer=options.optimizer
    )


def execution_mode(placement: Placement, problem: Problem) -> str:
    """``measured`` where every device in use has a core or GPU of this machine to itself."""
    from gnnplace.execution import setting

    return setting.execution_mode(placement, problem)


def read_or_profile(
    what: str,
    cluster: str | Cluster | None,
    options: CaptureOptions,
    progress: Progress | None = None,
) -> Problem:
    """The problem of a problem file or of a model on a cluster.

    Raises:
        InputError: neither a file nor a model.
    """
    if not (what.endswith(".json") or Path(what).is_file()):
        return profile(what, cluster or "auto", options=options, progress=progress)
    problem = read_problem(what)
    if cluster is not None:
        problem = on_cluster(problem, resolve_cluster(cluster))
    if options.microbatches > 1:
        problem = with_microbatches(problem, options.microbatches)
    return problem


def estimated_problem(program: Program, options: CaptureOptions) -> Problem:
    """A captured model as a problem on one CPU, with estimated times; nothing is measured."""
    from gnnplace import profiling

    host = Device(name="cpu:0", kind="cpu", memory=HOST_MEMORY)
    bare = replace(program, initial={})
    return profiling.profile(
        bare,
        Cluster((host,), (), "host"),
        groups=options.groups,
        microbatches=options.microbatches,
    )
