"""``gnnplace explain``: what bounds the step of a placement or a plan, and what else would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import say, show_answer
from gnnplace.cli.launch_files import read_launch_file
from gnnplace.errors import InputError
from gnnplace.report import describe

if TYPE_CHECKING:
    from gnnplace.explaining import LaunchExplanation


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

    problem, placement, constraints = read_placed(args, args.placement)
    # A name without --op or --module is an op's if there is such an op, else a module's.
    op = args.op
    module = args.module
    if args.name in problem.graph.index:
        op = op or args.name
    else:
        module = module or args.name
    if args.loosen:
        gnnplace.make_placer(args.placer)
        gnnplace.warm([args.placer], progress=say, num_ops=problem.num_ops)
    search = gnnplace.PlaceOptions(args.placer, args.budget, args.seed)
    explanation = gnnplace.explain(
        problem,
        placement,
        op=op,
        module=module,
        constraints=constraints,
        loosen=search if args.loosen else None,
    )
    show_answer(args, describe(explanation))
    return 0


def _show_words(args: Namespace) -> int:
    """Show what a launch file says, without a model and a cluster."""
    plan, launcher = read_launch_file(args, args.what, args.source_launcher)
    show_answer(args, describe(plan, launcher=launcher, path=args.what))
    return 0


def _explain_plan(args: Namespace) -> int:
    """Explain a plan, whose file alone was given."""
    from gnnplace.explaining import LaunchExplanation

    if gnnplace.is_launch_file(args.what):
        launch = _explain_launch_file(args)
        show_answer(args, describe(launch, name=args.what, cluster=args.cluster))
        return 0
    explanation = gnnplace.explain_plan(
        gnnplace.read_plan(args.what),
        model=args.model,
        cluster=args.cluster,
        measured=args.measured,
        progress=say,
    )
    # A plan in words is explained as the launch file that it would be.
    if isinstance(explanation, LaunchExplanation):
        cluster = explanation.answer.setting.cluster.name
        show_answer(args, describe(explanation, name=args.what, cluster=cluster))
        return 0
    show_answer(args, describe(explanation))
    return 0


def _explain_launch_file(args: Namespace) -> LaunchExplanation:
    """Explain the plan that a launch file of a training framework describes."""
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
    return gnnplace.explain_launch_plan(priced, args.measured)
