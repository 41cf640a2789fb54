"""``gnnplace compare``: every placer side by side on one problem."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    check_output,
    parse_names,
    say,
    show_answer,
)
from gnnplace.cli.options import (
    capture_options,
    read_all_constraints,
)
from gnnplace.cli.place import read_or_capture_problem
from gnnplace.errors import InputError, MissingExtraError
from gnnplace.problem import Problem
from gnnplace.report import BaselinePlans, Comparison, describe, write_answer


def run(args: Namespace) -> int:
    """Compare placers and print the results."""
    gnnplace.check_budget(args.budget)
    _check_views(args)
    if args.plans:
        return _compare_plans(args)
    constraints = read_all_constraints(args)
    device_limit = gnnplace.Constraints(max_devices=constraints.max_devices)
    names = parse_names(args.placers)
    for name in names:
        with suppress(MissingExtraError):  # its row says so
            gnnplace.make_placer(name)  # a wrong name shows before the work
    if args.objective not in (gnnplace.TIME, gnnplace.THROUGHPUT):
        raise InputError(
            f"objective {args.objective!r}: must be 'time' or 'throughput'"
        )
    problem = read_or_capture_problem(
        args, capture_options(args, constraints=constraints.patterns)
    )
    problem = gnnplace.limit_memory(problem, constraints)
    gnnplace.warm(names or None, progress=say, num_ops=problem.num_ops)
    if args.objective == gnnplace.THROUGHPUT:
        return _compare_intervals(problem, names, args, device_limit)
    how: dict[str, Any] = {
        "budget": args.budget,
        "seed": args.seed,
        "constraints": device_limit,
        "progress": say,
    }
    results = gnnplace.compare(problem, names or None, **how)
    may_split = constraints.max_devices != 1
    answer = describe(Comparison(problem, results, may_split=may_split))
    write_answer(answer, page=args.html, trace=args.trace)
    show_answer(args, answer)
    return 0


def _check_views(args: Namespace) -> None:
    """Refuse ``--html`` and ``--trace`` where there is no timeline of one step, before the work."""
    for option in ("html", "trace"):
        path = getattr(args, option)
        check_output(path)
        if path is not None and (args.plans or args.objective != gnnplace.TIME):
            raise InputError(
                f"--{option}: shows placements of one step; plan --{option} shows a joint plan"
            )


def _compare_intervals(
    problem: Problem,
    names: list[str],
    args: Namespace,
    asked: gnnplace.Constraints,
) -> int:
    gnnplace.warm(["best"], gnnplace.THROUGHPUT, say)
    how: dict[str, Any] = {"budget": args.budget, "seed": args.seed, "progress": say}
    results = gnnplace.compare_intervals(
        problem, names or None, constraints=asked, **how
    )
    show_answer(args, describe(Comparison(problem, results, is_pipelined=True)))
    return 0


def _compare_plans(args: Namespace) -> int:
    """Search a plan, print it beside baselines, and return the exit code."""
    if args.cluster is None:
        raise InputError("compare --plans: needs --cluster, the GPUs to plan for")
    constraints = read_all_constraints(args)
    if constraints.patterns or constraints.max_devices is not None:
        raise InputError(
            "compare --plans: baselines obey no pins; give constraints to plan"
        )
    plans = gnnplace.compare_plans(
        args.what,
        args.cluster,
        batch=args.batch,
        precision=args.precision,
        optimizer=args.optimizer,
        headroom=constraints.headroom or "auto",
        budget=args.budget,
        accept_other_loss=args.accept_other_loss,
        progress=say,
    )
    show_answer(args, describe(BaselinePlans(plans)))
    if plans["plan"] is not None:
        return 0
    return 3
