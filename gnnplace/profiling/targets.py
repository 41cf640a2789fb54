"""What to place on: clusters by what they are called, and problems moved to other clusters."""

from __future__ import annotations

from dataclasses import replace

from gnnplace.cluster import Cluster, load_cluster, preset_names
from gnnplace.errors import InputError
from gnnplace.problem import Problem


def resolve_cluster(cluster: str | Cluster) -> Cluster:
    """A cluster by ``cpu:N``, ``cuda:N``, ``auto``, a preset's name or a YAML file.

    Raises:
        InputError: none of these; says what there is.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if cluster in preset_names():
        return load_cluster(cluster)
    from gnnplace import profiling

    return profiling.detect(cluster) if profiling.is_spec(cluster) else load_cluster(cluster)


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
    if (problem.pin >= 0).any():
        raise InputError(f"problem {problem.name!r}: ops are pinned to devices of its own cluster")
    return replace(problem, cluster=cluster)
