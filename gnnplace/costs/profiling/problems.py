"""Problems from models: captured and profiled on a cluster, or estimated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from gnnplace.costs.own import with_measurements
from gnnplace.costs.profiling.profiler import any_local, profile
from gnnplace.costs.profiling.targets import is_problem_file, read_on_cluster, resolve_cluster
from gnnplace.costs.tables import Tables, with_table
from gnnplace.errors import InputError
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.cluster.gpus import known_kind
from gnnplace.problem.constraints import constrained
from gnnplace.tracing.models import capture_model, say_batch
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program import Program

Progress = Callable[[str], None]
HOST_MEMORY = 1e12  # Bytes: a captured graph is not yet meant for any machine.


def profile_model(
    model: str | Program,
    cluster: str | Cluster = "auto",
    *,
    options: CaptureOptions | None = None,
    links: str | None = None,
    table: str | Path | None = None,
    progress: Progress | None = None,
) -> Problem:
    """A model on a cluster as a problem, with measured op times where the devices are here.

    Args:
        model: As ``capture_model`` takes it, or a program captured at 1/M of the batch.
        cluster: As ``resolve_cluster`` takes it.
        options: As for ``capture_model``.
        links: A log of nccl-tests, whose figures replace those of the cluster's links.
        table: A user's own measured ops, a CSV file as ``gnnplace.costs.rows`` has it: the first
            that answers for the kinds that it has, on this machine too.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        FormatError: a line of the log that cannot be read.
        InputError: there is no such model or cluster.
        CaptureError: the model cannot be captured.
    """
    options, cluster = options or CaptureOptions(), resolve_cluster(cluster)
    if links is not None:
        measured = with_measurements(cluster, links)
        cluster = measured.cluster
        for note in measured.notes:
            (progress or str)(note)
    tables = with_table(table)
    _check_kinds(tables, cluster, table)
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
    return replace(problem, captured=asdict(options))


def capture_for(
    model: str,
    cluster: str | Cluster,
    options: CaptureOptions,
    progress: Progress | None = None,
) -> Program:
    """A model's step, captured to be profiled on a cluster.

    Args:
        model: As ``capture_model`` takes it.
        cluster: Where nothing can be measured nothing is allocated, however large the model.
        options: As for ``capture_model``.
        progress: Called with a line before.

    Raises:
        InputError: there is no such model or cluster.
        CaptureError: the model cannot be captured.
    """
    (progress or str)(f"capturing the step of {model}")
    fake = not any_local(resolve_cluster(cluster))
    program = capture_model(model, options=options, fake=fake)
    say_batch(program, progress)
    return program


def _check_kinds(tables: Tables, cluster: Cluster, table: str | Path | None) -> None:
    kinds = {known_kind(kind) or kind for kind in cluster.kinds}
    if tables.given and not kinds.intersection(tables.given):
        raise InputError(
            f"table {table}: has ops of {', '.join(sorted(tables.given))}, and no device of the "
            f"cluster is of that kind but of {', '.join(cluster.kinds)}; give a cluster with one"
        )


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
    if is_problem_file(what):
        problem = read_on_cluster(what, cluster, options.microbatches)
        return constrained(problem, options.constraints.patterns, progress)
    return profile_model(what, cluster or "auto", options=options, progress=progress)


def estimated_problem(program: Program, options: CaptureOptions) -> Problem:
    """A captured model as a problem on one CPU, with estimated times; nothing is measured."""
    host = Device(name="cpu:0", kind="cpu", memory=HOST_MEMORY)
    return profile(
        replace(program, initial={}),
        Cluster((host,), (), "host"),
        groups=options.groups,
        microbatches=options.microbatches,
        constraints=options.constraints.borders,
    )
