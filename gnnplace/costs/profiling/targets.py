"""What to place on: clusters by what they are called, problem files on other clusters. No torch."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gnnplace.errors import InputError
from gnnplace.problem import Problem, read_problem
from gnnplace.problem.cluster import Cluster, load_cluster, preset_names
from gnnplace.problem.microbatching import with_microbatches

SPEC = re.compile(r"(auto)|(cpu|cuda)(?::(\d+))?")


def resolve_cluster(cluster: str | Cluster) -> Cluster:
    """A cluster by ``cpu:N``, ``cuda:N``, ``auto``, a preset's name or a YAML file.

    Raises:
        InputError: none of these; says what there is.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if cluster in preset_names() or SPEC.fullmatch(cluster) is None:
        return load_cluster(cluster)
    # Imported late: it needs torch, which presets and files do not.
    from gnnplace.costs.profiling.detection import detect

    return detect(cluster)


def on_cluster(problem: Problem, cluster: Cluster) -> Problem:
    """The same graph and times on another cluster.

    Raises:
        InputError: a pin, or a kind that no op has a time for.
    """
    missing = [kind for kind in cluster.kinds if kind not in problem.time]
    if missing:
        raise InputError(
            f"problem {problem.name!r}: no op has a time for device kind {missing[0]!r}; "
            "profile the model on that cluster instead"
        )
    if (problem.pin >= 0).any() or problem.forbid is not None:
        raise InputError(
            f"problem {problem.name!r}: ops are pinned or forbidden to devices of its own cluster; "
            "place it without --cluster, or take the problem without pins"
        )
    return replace(problem, cluster=cluster)


def is_problem_file(what: str) -> bool:
    """Whether ``what`` names a problem file and not a model."""
    if what.startswith("hf:") or what.endswith(".py"):  # a configuration, a module
        return False
    return what.endswith(".json") or Path(what).is_file()


def read_on_cluster(path: str, cluster: str | Cluster | None, microbatches: int = 1) -> Problem:
    """A problem file, on another cluster and cut into micro-batches where that is asked for.

    Raises:
        FormatError: the file is malformed.
        InputError: no op has a time for a device of the cluster.
    """
    problem = read_problem(path)
    if cluster is not None:
        problem = on_cluster(problem, resolve_cluster(cluster))
    return with_microbatches(problem, microbatches) if microbatches > 1 else problem
