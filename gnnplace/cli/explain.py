"""``gnnplace explain``: what bounds the step of a placement or a plan, and what else would cost."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import print_answer, say
from gnnplace.cli.options import values_of
from gnnplace.cli.placed import read_placed
from gnnplace.errors import InputError
from gnnplace.report.explanations import explanation_data, explanation_parts


def run(args: Namespace) -> int:
    """Explains a placement or a plan."""
    gnnplace.check_budget(args.budget)
    if args.words:
        return _show_words(args)
    if args.placement is None:
        return _explain_plan(args)
    if args.measured is not None:
        raise InputError("--measured: is of a plan; give its file alone")
    problem, placement, asked = read_placed(args, args.placement)
    known = args.name in problem.graph.index
    op, module = args.op, args.module or (None if known else args.name)
    if args.loosen:
        gnnplace.make_placer(args.placer)
        gnnplace.warm([args.placer], progress=say, num_ops=problem.num_ops)
    search = gnnplace.PlaceOptions(args.placer, args.budget, args.seed)
    found = gnnplace.explain(
        problem,
        placement,
        op=op or (args.name if known else None),
        module=module,
        constraints=asked,
        loosen=search if args.loosen else None,
    )
    print_answer(args, lambda: explanation_data(found), lambda: explanation_parts(found))
    return 0


def _show_words(args: Namespace) -> int:
    """Show what a launch file says, without a model and a cluster."""
    from gnnplace.plans import words_data, words_lines

    launcher = args.source_launcher
    if launcher is None:
        launcher = gnnplace.launcher_of_file(args.what)
    plan = gnnplace.read_launch_file(
        args.what,
        launcher,
        values_of(args),
    )
    print_answer(
        args,
        lambda: words_data(plan, launcher),
        lambda: words_lines(plan, launcher, args.what),
    )
    return 0


def _explain_plan(args: Namespace) -> int:
    """Explains a plan, whose file alone was given."""
    from gnnplace.report.plan_explanations import (
        launch_explanation_data,
        launch_explanation_lines,
        plan_explanation_data,
        plan_explanation_lines,
    )

    if gnnplace.is_launch_file(args.what):
        if args.cluster is None:
            raise InputError("--cluster: is needed to price a launch file, such as dgx-h100-8x8")
        name = args.source_launcher
        if name is None:
            name = gnnplace.launcher_of_file(args.what)
        priced = gnnplace.price_launch_plan(
            gnnplace.read_launch_file(args.what, name, values_of(args)),
            name,
            args.cluster,
            model=args.model,
            environment=args.environment,
        )
        run = gnnplace.explain_launch_plan(priced, args.measured)
        lines = launch_explanation_lines(run, args.what, args.cluster)
        print_answer(args, lambda: launch_explanation_data(run), lambda: lines)
        return 0
    found = gnnplace.explain_plan(
        gnnplace.read_plan(args.what),
        model=args.model,
        cluster=args.cluster,
        measured=args.measured,
        progress=say,
    )
    print_answer(args, lambda: plan_explanation_data(found), lambda: plan_explanation_lines(found))
    return 0
