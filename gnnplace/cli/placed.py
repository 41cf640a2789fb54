"""A placement that a command is given, and the problem or model that it is of."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import say
from gnnplace.cli.options import CAPTURE
from gnnplace.errors import MismatchError
from gnnplace.files import read_json
from gnnplace.problem import (
    CLUSTER_KEY,
    CONSTRAINTS_KEY,
    OPTIONS_KEY,
    Placement,
    Problem,
)


def read_placed(
    args: Namespace, path: str
) -> tuple[Problem, Placement, gnnplace.Constraints]:
    """Return the problem of a placement, the placement, and the constraints that it was made with.

    Raises:
        FormatError, MismatchError: It is no placement, or one of another problem.
    """
    data = read_json(path)
    if isinstance(data, dict):
        stored = data.get(CONSTRAINTS_KEY)
    else:
        stored = None
    constraints = gnnplace.as_constraints(stored if isinstance(stored, dict) else None)
    options = find_placed_options(args, data)
    if gnnplace.is_problem_file(args.what):
        problem = gnnplace.read_on_cluster(args.what, args.cluster)
        placement, problem = gnnplace.read_placement_for(path, problem)
        return problem, placement, constraints
    cluster = args.cluster or name_cluster(data)
    problem = gnnplace.read_or_profile(args.what, cluster, options, say)
    placement, problem = gnnplace.read_placement_for(path, problem)
    return problem, placement, constraints


def find_placed_options(args: Namespace, data: object) -> gnnplace.CaptureOptions:
    """Return the capture options that the placement was made with, else those of the command."""
    if isinstance(data, dict):
        stored = data.get(OPTIONS_KEY)
    else:
        stored = None
    options = {key: getattr(args, key) for key in CAPTURE}
    if isinstance(stored, dict):
        options.update(
            {key: stored[key] for key in (*CAPTURE, "constraints") if key in stored}
        )
    options["microbatches"] = max(
        options["microbatches"], gnnplace.count_placed_microbatches(data)
    )
    return gnnplace.CaptureOptions(**options)


def name_cluster(data: object) -> str:
    """Return the cluster that a placement's file names, else ``cpu:N`` or ``cuda:N``.

    The latter is told by the names of the placement's devices.

    Raises:
        MismatchError: The file names no cluster, and its devices are not those of this machine.
    """
    if isinstance(data, dict):
        cluster = data.get(CLUSTER_KEY)
    else:
        cluster = None
    if isinstance(cluster, str):
        return cluster
    if isinstance(data, dict):
        sequence = data.get("sequence")
    else:
        sequence = None
    if isinstance(data, dict):
        devices = data.get("device")
    else:
        devices = None
    if isinstance(sequence, dict):
        names = list(sequence)
    else:
        names = []
    if isinstance(devices, dict):
        names = names or sorted(set(devices.values()))
    kinds = {str(name).partition(":")[0] for name in names}
    if len(kinds) != 1 or not kinds <= {"cpu", "cuda"}:
        raise MismatchError(
            "placement: its devices are not those of this machine (cpu:N or cuda:N); give the "
            "cluster it was made for with --cluster and --mode emulated"
        )
    return f"{kinds.pop()}:{len(names)}"
