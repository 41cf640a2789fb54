"""``gnnplace profile``: a model's op times on a cluster, as the problem of placing it."""

from __future__ import annotations

import numpy as np
from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, console, correction, say
from gnnplace.cli.options import (
    capture_options,
    options_entry,
    read_all_constraints,
)
from gnnplace.errors import InputError
from gnnplace.files import write_json
from gnnplace.problem import problem_to_data
from gnnplace.units import seconds_text


def run(args: Namespace) -> int:
    """Profile a model and write its problem."""
    check_output(args.output)
    correct = correction(args.calibration)
    constraints = read_all_constraints(args)
    if constraints.max_devices is not None:
        raise InputError(
            f"{args.constraints}: max_devices: is for place; a problem has no limit"
        )
    options = capture_options(args, constraints=constraints.patterns)
    profiled = gnnplace.profile(
        args.model,
        args.cluster,
        options=options,
        links=args.links,
        table=args.table,
        progress=say,
    )
    problem = gnnplace.limit_memory(correct(profiled), constraints)
    write_json(args.output, problem_to_data(problem) | options_entry(options))
    share = float(problem.estimated.mean())
    if share == 0:
        origin = "measured"
    elif share == 1:
        origin = "estimated"
    else:
        origin = "partly estimated"
    single = np.where(np.isfinite(problem.times), problem.times, 0).sum(axis=0).min()
    console(args.output).print(
        f"{problem.name}: {problem.num_ops} ops, {seconds_text(float(single))} of work on one "
        f"device ({origin} times), {problem.num_devices} devices; written to {args.output}"
    )
    return 0
