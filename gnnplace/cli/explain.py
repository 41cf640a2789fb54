"""``gnnplace explain``: what bounds the step of a placement or a plan, and what else would cost."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import print_answer, say
from gnnplace.cli.launch_files import read_launch_file
from gnnplace.errors import InputError


def run(args: Namespace) -> int:
    """Explain a placement or a plan."""
    gnnplace.check_budget(args.budget)
    if args.words:
        return _show_words(args)
    if args.placement is None:
        return _explain_plan(args)
    if args.measured is not None:
        raise InputError("--measured: is of a plan; give its file alone")
    # Words of a launch file and plans need no placer, whose kernels take a while to import.
    from gnnplace.cli.placed import read_placed
    from gnnplace.report.explanations import explanation_data, explanation_parts

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
    print_answer(
        args, lambda: explanation_data(found), lambda: explanation_parts(found)
    )
    return 0


def _show_words(args: Namespace) -> int:
    """Show what a launch file says, without a model and a cluster."""
    from gnnplace.launch import words_data, words_lines

    plan, launcher = read_launch_file(args, args.what, args.source_launcher)
    print_answer(
        args,
        lambda: words_data(plan, launcher),
        lambda: words_lines(plan, launcher, args.what),
    )
    return 0


def _explain_plan(args: Namespace) -> int:
    """Explain a plan, whose file alone was given."""
    from gnnplace.explaining import LaunchExplanation
    from gnnplace.report.plan_explanations import (
        launch_explanation_data,
        launch_explanation_lines,
        plan_explanation_data,
        plan_explanation_lines,
    )

    if gnnplace.is_launch_file(args.what):
        if args.cluster is None:
            raise InputError(
                "--cluster: is needed to price a launch file, such as dgx-h100-8x8"
            )
        plan, name = read_launch_file(args, args.what, args.source_launcher)
        priced = gnnplace.price_launch_plan(
            plan,
            name,
            args.cluster,
            batch=args.batch,
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
    if isinstance(found, LaunchExplanation):
        lines = launch_explanation_lines(
            found, args.what, found.answer.setting.cluster.name
        )
        print_answer(args, lambda: launch_explanation_data(found), lambda: lines)
        return 0
    print_answer(
        args,
        lambda: plan_explanation_data(found),
        lambda: plan_explanation_lines(found),
    )
    return 0
