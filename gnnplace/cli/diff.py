"""``gnnplace diff``: which modules two placements have on other devices, and what came of it."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, show_answer
from gnnplace.cli.placed import read_placed
from gnnplace.errors import InputError
from gnnplace.plans import is_plan, read_plan
from gnnplace.report import PlanDifference, describe, write_answer


def run(args: Namespace) -> int:
    """Compare two placements."""
    check_output(args.html, args.trace)
    if is_plan(args.before) and is_plan(args.after):
        return _plans(args)
    first, first_placement, first_constraints = read_placed(args, args.before)
    second, second_placement, second_constraints = read_placed(args, args.after)
    first = gnnplace.apply_constraints(first, first_constraints)
    second = gnnplace.apply_constraints(second, second_constraints)
    difference = gnnplace.difference(first, first_placement, second_placement, second)
    placements = [
        (first, first_placement, Path(args.before).stem),
        (second, second_placement, Path(args.after).stem),
    ]
    answer = describe(difference, placements=placements)
    write_answer(answer, page=args.html, trace=args.trace)
    show_answer(args, answer)
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
    show_answer(args, describe(PlanDifference(*plans)))
    return 0
