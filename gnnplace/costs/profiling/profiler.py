"""Problems from models: a program on a cluster, with measured or estimated times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.costs.own import with_measurements
from gnnplace.costs.profiling import cache as disk
from gnnplace.costs.profiling.estimation import (
    KindTimes,
    estimate_ops,
    estimate_times,
    load_measured_times,
)
from gnnplace.costs.profiling.grouping import (
    find_outermost_modules,
    find_units,
    group_graph,
)
from gnnplace.costs.profiling.measurement import measure_ops
from gnnplace.costs.profiling.targets import (
    gpu_kind,
    gpu_names,
    is_problem_file,
    read_on_cluster,
    resolve_cluster,
)
from gnnplace.costs.profiling.workspace import op_workspace
from gnnplace.costs.tables import CostTables, load_shipped_tables
from gnnplace.errors import InputError
from gnnplace.foreign import check_installed
from gnnplace.graph import coarsen
from gnnplace.problem import (
    PHASES,
    Cluster,
    Constraints,
    Device,
    Problem,
    Resolved,
    apply_constraints,
    apply_pins,
    build_problem,
    find_kind,
    limit_memory,
    resolve,
    with_microbatches,
)
from gnnplace.tracing import (
    CaptureOptions,
    Program,
    ProgramGraph,
    base_name,
    capture_model,
    list_buffer_turns,
    program_graph,
    say_batch,
    with_program_microbatches,
)

Progress = Callable[[str], None]
# The kind whose estimated costs decide the groups, so that they are the same on every machine.
ORIENTATION = "cpu"
HOST_MEMORY = 1e12  # Bytes: a captured graph is not yet meant for any machine.


def profile(
    program: Program,
    cluster: Cluster,
    *,
    groups: int | None = None,
    microbatches: int = 1,
    tables: CostTables | None = None,
    constraints: Constraints | None = None,
    progress: Progress | None = None,
) -> Problem:
    """Measure a program and put it on a cluster.

    Args:
        program: One step; for micro-batches captured at 1/M of the batch, not cut yet.
        cluster: Devices; times of the kinds of this machine are measured, those of others are
            estimated.
        groups: Ops of the problem to aim at; None: an op of the problem for each op of the program
            (a buffer's copy stays with the op that makes the value).
        microbatches: M copies of forward and backward in flight.
        tables: Times of ops on devices that are not here; the shipped ones by default.
        constraints: What is asked of modules; what they match is grouped with nothing else.
        progress: Called with a line when something begins that takes seconds, and where times are
            from.

    Returns:
        The problem; its `members` name ops of the program (or of `microbatched(program, M)`).

    Raises:
        InputError: A device kind that is neither here nor known, or a pattern without a module.
        InfeasibleError: Constraints contradict each other.
        ExecutionError: An op failed while it was measured.
    """
    fine = program_graph(program)
    resolved = _resolve_constraints(
        program, fine, constraints or Constraints(), progress
    )
    resolved.devices(cluster)  # a wrong name shows before anything is measured
    fine = replace(fine, colocate=resolved.classes(fine.colocate))
    cost = estimate_ops(program, ORIENTATION)
    group = _group_ops(fine, cost, resolved, groups)
    workspace = op_workspace(program, microbatches, on_cpu="cpu" in cluster.kinds)
    coarse = group_graph(program, fine, group, cost, op_workspace=workspace)
    count = coarse.graph.num_ops
    time = {}
    error = {}
    source = {}
    estimated = np.zeros(count, dtype=bool)
    # Measured as it will run: updates of M gradients cost more than of one.
    microbatched_program = with_program_microbatches(program, microbatches)
    for kind in cluster.kinds:
        times = op_times(microbatched_program, kind, tables=tables, progress=progress)
        seconds = mean_over_copies(microbatched_program, program, times.seconds)
        time[kind] = np.bincount(group, seconds, count).astype(np.float64)
        estimated |= not times.measured
        if times.source:
            index = microbatched_program.op_index
            # The first copy of each op, where micro-batches have copied it.
            first = [
                index[op.name if op.name in index else f"{op.name}#0"]
                for op in program.ops
            ]
            sources = [times.source[i] for i in first]
            error[kind], source[kind] = _find_group_errors(
                group, seconds, times.error[first], sources, time[kind]
            )
    problem = build_problem(
        program.name,
        coarse.graph,
        cluster,
        time,
        state=coarse.state + microbatches * coarse.inputs,
        phase=coarse.phase,
        colocate=coarse.colocate,
        module=coarse.module,
        members=coarse.members,
        estimated=estimated,
        error=error,
        source=source,
    )
    if resolved.pins or resolved.forbids:
        problem = apply_pins(problem, resolved.of_groups(group, count))
    turns = {(int(group[a]), int(group[b])) for a, b in list_buffer_turns(program)}
    return with_microbatches(problem, microbatches, profiled=True, turns=sorted(turns))


def mean_over_copies(
    whole: Program, program: Program, seconds: FloatArray
) -> FloatArray:
    """Return the mean seconds of every op of `program` over its copies in the cut `whole`."""
    origin = [program.op_index[base_name(op.name)] for op in whole.ops]
    total = np.bincount(origin, seconds, len(program.ops))
    return np.asarray(total / np.bincount(origin, minlength=len(program.ops)))


def group_ops(program: Program, groups: int | None) -> IntArray:
    """Return the group of each op. [num_ops]

    It is the same for every capture of the model, on every machine.

    Args:
        program: The program whose ops are grouped.
        groups: Number to aim at; None: only what must not be parted is grouped.
    """
    fine = program_graph(program)
    resolved = _resolve_constraints(program, fine, Constraints())
    return _group_ops(fine, estimate_ops(program, ORIENTATION), resolved, groups)


def _resolve_constraints(
    program: Program,
    fine: ProgramGraph,
    constraints: Constraints,
    progress: Progress | None = None,
) -> Resolved:
    """Return the ops that constraints match; modules stay whole where constraints ask for that."""
    units = None
    if constraints.by_module:
        units = find_units(program, constraints.no_split).labels
    elif constraints.no_split:
        units = find_outermost_modules(program, constraints.no_split)
    return resolve(constraints, fine.module, fine.graph.names, progress, units)


def _group_ops(
    fine: ProgramGraph, cost: FloatArray, asked: Resolved, groups: int | None
) -> IntArray:
    """Return the group of each op; none has ops of two phases or of both sides of a border."""
    apart = asked.borders(len(cost)) * len(PHASES) + fine.phase
    return coarsen(
        fine.graph,
        cost,
        target=len(cost) if groups is None else groups,
        unit=fine.colocate,
        phase=apart,
        attach=fine.attach,
    )


def op_times(
    program: Program,
    kind: str,
    *,
    tables: CostTables | None = None,
    progress: Progress | None = None,
) -> KindTimes:
    """Return the seconds of each op on a kind, and where they are from.

    A kind of this machine is measured, unless the user gave a table of it.

    Raises:
        InputError: The kind is neither on this machine nor known.
        ExecutionError: An op failed while it was measured.
    """
    device = find_local_device(kind)
    has_user_table = tables is not None and kind in tables.user_errors
    # A program without tensors cannot run here, and a table of the user's wins over measuring.
    if kind == "cpu" and not program.initial and not has_user_table:
        seconds = estimate_ops(program, kind)
        return KindTimes(seconds, False, np.full(len(seconds), np.nan), ())
    if device is None or not program.initial or has_user_table:
        return _estimate(program, kind, tables, progress)
    count = len(program.ops)

    def measure() -> tuple[list[float], float]:
        if progress is not None:
            progress(f"measuring {count} ops of {program.name} on {device}")
        seconds, noise = measure_ops(program, device)
        return seconds.tolist(), noise

    measured = disk.get_or_measure(
        "ops",
        disk.make_cache_key("ops", kind, count, disk.program_digest(program)),
        measure,
        what=f"the op times of {program.name} on {device}",
        fits=lambda value: _are_seconds(value, count),
        progress=progress,
    )
    return load_measured_times(np.array(measured, dtype=np.float64))


def _estimate(
    program: Program, kind: str, tables: CostTables | None, progress: Progress | None
) -> KindTimes:
    times = estimate_times(program, kind, tables)
    if progress is not None:
        progress(f"times of {program.name} on {kind}, eager: {times}")
        if times.misaligned:
            op = program.ops[times.misaligned[0]]
            progress(
                f"{len(times.misaligned)} products of {program.name} have a size that is no "
                f"multiple of 8, such as {op.name} ({op.module or 'no module'}): in half "
                "precision they take about three times as long; pad that size"
            )
    return times


def _find_group_errors(
    group: IntArray,
    seconds: FloatArray,
    error: FloatArray,
    source: list[str],
    total: FloatArray,
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return the error of each group, and the source of its longest op.

    The error is the mean of its ops', weighted by time: errors of one source are correlated, so
    that they do not cancel out.

    Args:
        group: The group of each op. [ops]
        seconds: Seconds of each op. [ops]
        error: Error of each op. [ops]
        source: Source of each op's seconds. [ops]
        total: Seconds of each group. [groups]
    """
    weighed = np.bincount(group, seconds * error, len(total))
    mean = np.divide(weighed, total, out=np.zeros_like(total), where=total > 0)
    longest_op = np.zeros(int(group.max()) + 1, dtype=np.intp)
    order = np.argsort(seconds, kind="stable")
    longest_op[group[order]] = order
    return np.asarray(mean), tuple(source[i] for i in longest_op)


def _are_seconds(value: object, count: int) -> bool:
    """Return whether plain data is a time for each of so many ops."""
    if not isinstance(value, list) or len(value) != count:
        return False
    return all(
        isinstance(second, int | float) and 0 <= second < np.inf for second in value
    )


def has_local_device(cluster: Cluster) -> bool:
    """Return whether this machine has a device of one of the cluster's kinds."""
    return any(find_local_device(kind) is not None for kind in cluster.kinds)


def find_local_device(kind: str) -> str | None:
    """Return a device of this machine of a kind, as torch names it, or None."""
    if kind == "cpu":
        return "cpu"
    kinds = [gpu_kind(name) for name, _ in gpu_names()]
    if kind in kinds:
        return f"cuda:{kinds.index(kind)}"
    return None


def profile_model(
    model: str | Program,
    cluster: str | Cluster = "auto",
    *,
    options: CaptureOptions | None = None,
    links: str | None = None,
    table: str | Path | None = None,
    progress: Progress | None = None,
) -> Problem:
    """Return a model on a cluster as a problem, with measured op times where the devices are here.

    Args:
        model: The model, as ``capture_model`` takes it, or a program captured at 1/M of the batch.
        cluster: The cluster, as ``resolve_cluster`` takes it.
        options: How the model is captured, as ``capture_model`` takes it.
        links: A log of nccl-tests, whose figures replace those of the cluster's links.
        table: A user's own measured ops, a CSV file as ``gnnplace.costs.rows`` has it: the first
            that answers for the kinds that it has, on this machine too.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        FormatError: A line of the log cannot be read.
        InputError: There is no such model or cluster.
        CaptureError: The model cannot be captured.
    """
    options = options or CaptureOptions()
    cluster = resolve_cluster(cluster)
    if links is not None:
        measured = with_measurements(cluster, links)
        cluster = measured.cluster
        for note in measured.notes:
            (progress or str)(note)
    tables = _tables(table)
    kinds = {find_kind(kind) or kind for kind in cluster.kinds}
    if tables.user_errors and not kinds.intersection(tables.user_errors):
        raise InputError(
            f"table {table}: has ops of {', '.join(sorted(tables.user_errors))}, and no device of "
            f"the cluster is of that kind but of {', '.join(cluster.kinds)}; give a cluster with "
            "one"
        )
    if isinstance(model, str):
        model = capture_for(model, cluster, options, progress)
    problem = profile(
        model,
        cluster,
        groups=options.groups,
        microbatches=options.microbatches,
        tables=tables,
        constraints=options.constraints,
        progress=progress,
    )
    return limit_memory(replace(problem, captured=asdict(options)), options.constraints)


def _tables(path: str | Path | None) -> CostTables:
    """Return the tables of a file beside those that are shipped, or these alone."""
    if path is None:
        return load_shipped_tables()
    # Imported late: its statistics take long to import.
    from gnnplace.costs.calibration import with_table

    return with_table(path)


def capture_for(
    model: str,
    cluster: str | Cluster,
    options: CaptureOptions,
    progress: Progress | None = None,
) -> Program:
    """Return a model's step, captured to be profiled on a cluster.

    Args:
        model: The model, as ``capture_model`` takes it.
        cluster: The cluster. If nothing can be measured on it, no tensors are allocated.
        options: How the model is captured, as ``capture_model`` takes it.
        progress: Called with a line before.

    Raises:
        InputError: There is no such model or cluster.
        CaptureError: The model cannot be captured.
    """
    check_installed("torch")
    (progress or str)(f"capturing the step of {model}")
    fake = not has_local_device(resolve_cluster(cluster))
    program = capture_model(model, options=options, fake=fake)
    say_batch(program, progress)
    return program


def read_or_profile(
    what: str,
    cluster: str | Cluster | None,
    options: CaptureOptions,
    progress: Progress | None = None,
) -> Problem:
    """Return the problem of a problem file or of a model on a cluster.

    Raises:
        InputError: What is given is neither a file nor a model.
    """
    if is_problem_file(what):
        problem = read_on_cluster(what, cluster, options.microbatches)
        return apply_constraints(problem, options.constraints.patterns, progress)
    return profile_model(what, cluster or "auto", options=options, progress=progress)


def make_estimated_problem(program: Program, options: CaptureOptions) -> Problem:
    """Return a captured model as a problem on one CPU, with estimated times and no measurement."""
    host = Device(name="cpu:0", kind="cpu", memory=HOST_MEMORY)
    return profile(
        replace(program, initial={}),
        Cluster((host,), (), "host"),
        groups=options.groups,
        microbatches=options.microbatches,
        constraints=options.constraints.borders,
    )
