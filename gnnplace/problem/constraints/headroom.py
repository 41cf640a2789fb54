"""What stays free on every device of a problem: bytes, a share, or what libraries take."""

from __future__ import annotations

from dataclasses import replace

from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.headroom import read_headroom, with_slack
from gnnplace.problem.cluster.headroom import with_headroom as with_so_much

AUTO = "auto"


def check_headroom(headroom: str | float | None) -> None:
    """Refuses headroom that is neither a share, nor bytes, nor "auto"; None is none.

    Raises:
        InputError: naming what was given and what may be.
    """
    if headroom is not None and headroom != AUTO:
        read_headroom(headroom)


def cluster_with_headroom(cluster: Cluster, headroom: str | float | None) -> Cluster:
    """The cluster with headroom on every device; see ``with_headroom``."""
    if headroom is None:
        return cluster
    return with_slack(cluster) if headroom == AUTO else with_so_much(cluster, headroom)


def with_headroom(problem: Problem, headroom: str | float | None) -> Problem:
    """The problem with headroom on every device; None leaves it as it is.

    Args:
        problem: what is placed.
        headroom: a share of each device's memory, as "10%", or bytes, as 2e9 or "2GB"; or "auto":
            what CUDA, NCCL and the allocator take on GPUs (``costs.memory``).

    Raises:
        InputError: neither, or more than a device has.
    """
    if headroom is None:
        return problem
    return replace(problem, cluster=cluster_with_headroom(problem.cluster, headroom))
