"""`profile`: a program on a cluster as a problem, with measured or estimated times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.cluster import Cluster
from gnnplace.graph import coarsening
from gnnplace.microbatching import with_microbatches
from gnnplace.problem import Problem, build_problem
from gnnplace.profiling import cache as disk
from gnnplace.profiling.detection import gpu_kind, gpu_names
from gnnplace.profiling.grouping import group_graph
from gnnplace.profiling.measurement import measure_ops
from gnnplace.profiling.roofline import estimate_ops
from gnnplace.tracing.microbatching import buffer_turns, microbatched
from gnnplace.tracing.program import Program, base_name
from gnnplace.tracing.structure import program_graph

Progress = Callable[[str], None]
ORIENTATION = "cpu"  # the kind whose estimated costs decide the groups, on every machine alike


def profile(
    program: Program,
    cluster: Cluster,
    *,
    groups: int = 200,
    coarsen: bool = True,
    microbatches: int = 1,
    cache: bool = True,
    progress: Progress | None = None,
) -> Problem:
    """Measure a program and put it on a cluster.

    Args:
        program: One step; for micro-batches captured at 1/M of the batch, not cut yet.
        cluster: Devices; times of the kinds of this machine are measured, those of others are
            estimated.
        groups: Ops of the problem to aim at.
        coarsen: False: an op of the problem for each op of the program (a buffer's copy stays
            with the op that makes the value).
        microbatches: M copies of forward and backward in flight.
        cache: Keep measured times on disk and use them.
        progress: Called with a line when something begins that takes seconds.

    Returns:
        The problem; its `members` name ops of the program (or of `microbatched(program, M)`).

    Raises:
        InputError: a device kind that is neither here nor known.
        ExecutionError: an op failed while it was measured.
    """
    fine = program_graph(program)
    cost = estimate_ops(program, ORIENTATION)
    group = group_ops(program, groups if coarsen else len(program.ops))
    coarse = group_graph(program, fine, group, cost)
    count = coarse.graph.num_ops
    time, estimated = {}, np.zeros(count, dtype=bool)
    whole = microbatched(program, microbatches)  # updates of M gradients cost more than of one
    for kind in cluster.kinds:
        seconds, measured = op_times(whole, kind, cache=cache, progress=progress)
        time[kind] = np.bincount(group, mean_over_copies(whole, program, seconds), count)
        estimated |= not measured
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
    )
    turns = {(int(group[a]), int(group[b])) for a, b in buffer_turns(program)}
    return with_microbatches(problem, microbatches, profiled=True, turns=sorted(turns))


def mean_over_copies(
    whole: Program, program: Program, seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean seconds of every op of `program` over its copies in the micro-batched `whole`."""
    origin = [program.op_index[base_name(op.name)] for op in whole.ops]
    total = np.bincount(origin, seconds, len(program.ops))
    return np.asarray(total / np.bincount(origin, minlength=len(program.ops)))


def group_ops(program: Program, groups: int) -> NDArray[np.int32]:
    """Group of each op; the same for every capture of the model, on every machine.

    Args:
        program: What to group.
        groups: Number to aim at. No fewer than there are ops: only what must not be parted is
            grouped.
    """
    fine = program_graph(program)
    return coarsening.coarsen(
        fine.graph,
        estimate_ops(program, ORIENTATION),
        target=groups,
        unit=fine.colocate,
        phase=fine.phase,
        attach=fine.attach,
    )


def op_times(
    program: Program, kind: str, *, cache: bool = True, progress: Progress | None = None
) -> tuple[NDArray[np.float64], bool]:
    """Seconds of each op on a kind, and whether they were measured.

    Raises:
        InputError: the kind is neither on this machine nor known.
        ExecutionError: an op failed while it was measured.
    """
    device = local_device(kind)
    if device is None or not program.initial:
        return estimate_ops(program, kind), False
    count = len(program.ops)

    def measure() -> tuple[list[float], float]:
        if progress is not None:
            progress(f"measuring {count} ops of {program.name} on {device}")
        seconds, noise = measure_ops(program, device)
        return seconds.tolist(), noise

    found = disk.kept(
        "ops",
        disk.key("ops", kind, count, disk.program_digest(program)),
        measure,
        what=f"the op times of {program.name} on {device}",
        fits=lambda value: _are_seconds(value, count),
        use=cache,
        progress=progress,
    )
    return np.array(found, dtype=np.float64), True


def _are_seconds(value: Any, count: int) -> bool:
    """Whether plain data is a time for each of so many ops."""
    if not isinstance(value, list) or len(value) != count:
        return False
    return all(isinstance(second, int | float) and 0 <= second < np.inf for second in value)


def any_local(cluster: Cluster) -> bool:
    """Whether this machine has a device of one of the cluster's kinds."""
    return any(local_device(kind) is not None for kind in cluster.kinds)


def local_device(kind: str) -> str | None:
    """A device of this machine of a kind, as torch names it, or None."""
    if kind == "cpu":
        return "cpu"
    kinds = [gpu_kind(name) for name, _ in gpu_names()]
    return f"cuda:{kinds.index(kind)}" if kind in kinds else None
