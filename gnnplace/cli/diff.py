"""``gnnplace diff``: which modules two placements have on other devices, and what came of it."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, print_answer, show_answer
from gnnplace.cli.placed import read_placed
from gnnplace.errors import InputError
from gnnplace.plans import is_plan, read_plan
from gnnplace.problem import Placement, Problem
from gnnplace.report import (
    difference_answer,
    difference_lines,
    find_moved_modules,
    from_simulation,
    write_placements,
    write_trace,
)


def run(args: Namespace) -> int:
    """Compare two placements."""
    check_output(args.html, args.trace)
    if is_plan(args.before) and is_plan(args.after):
        return _plans(args)
    first, first_placement, first_constraints = read_placed(args, args.before)
    second, second_placement, second_constraints = read_placed(args, args.after)
    first = gnnplace.constrained(first, first_constraints)
    second = gnnplace.constrained(second, second_constraints)
    difference = gnnplace.difference(first, first_placement, second_placement, second)
    if args.html is not None or args.trace is not None:
        _write_views(args, first, first_placement, second, second_placement)
    show_answer(args, difference_answer(difference))
    return 0


def _plans(args: Namespace) -> int:
    """Compare two joint plans."""
    from gnnplace.run.planned import check_model  # late: torch is for plans alone
    from gnnplace.tracing import make_workload

    if args.html is not None or args.trace is not None:
        raise InputError("--html, --trace: show placements; report shows a joint plan")
    plans = [read_plan(path) for path in (args.before, args.after)]
    for plan in plans:
        check_model(plan.file, make_workload(args.what, fake=True))
    first, second = plans
    seconds = [plan.file.step_time for plan in plans]
    data = {"step_times": seconds, "moved": find_moved_modules(first, second)}
    print_answer(args, lambda: data, lambda: difference_lines(first, second))
    return 0


def _write_views(
    args: Namespace,
    first: Problem,
    before: Placement,
    second: Problem,
    after: Placement,
) -> None:
    """Write both steps beside each other as a page and as a trace, if these are asked for."""
    timelines = [
        from_simulation(problem, gnnplace.simulate(problem, placement), Path(path).stem)
        for problem, placement, path in (
            (first, before, args.before),
            (second, after, args.after),
        )
    ]
    if args.html is not None:
        write_placements(args.html, first, timelines, beside=True)
    if args.trace is not None:
        write_trace(args.trace, timelines)
