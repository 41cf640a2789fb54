"""``gnnplace explain``: what bounds a placement's step, and what else would cost."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.console import console, print_json, say
from gnnplace.cli.numbers import add_options
from gnnplace.cli.options import add_json, add_search_options
from gnnplace.cli.placed import add_placed, read_placed
from gnnplace.report.explanations import explanation_data, explanation_parts

SUMMARY = "Says what bounds a placement's step, why devices idle, and what else would cost."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_placed(parser, "placement")
    parser.add_argument(
        "name", nargs="?", default=None, help="An op, if there is one of that name, or a module."
    )
    add_options(
        parser,
        ("--op", str, None, "An op: the step with it on each other device."),
        ("--module", str, None, "A module or a pattern: the step with it on each device."),
        (
            "--loosen",
            bool,
            False,
            "Search once without each constraint, for --budget seconds each: what it costs.",
        ),
        ("--placer", str, "best", "The placer that --loosen searches with."),
    )
    add_search_options(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Explains a placement."""
    gnnplace.check_budget(args.budget)
    problem, placement, asked = read_placed(args, args.placement)
    known = args.name in problem.graph.index
    op, module = args.op, args.module or (None if known else args.name)
    if args.loosen:
        gnnplace.make_placer(args.placer)
        gnnplace.warm([args.placer], progress=say, num_ops=problem.num_ops)
    found = gnnplace.explain(
        problem,
        placement,
        op=op or (args.name if known else None),
        module=module,
        constraints=asked,
        loosen=args.loosen,
        placer=args.placer,
        budget=args.budget,
        seed=args.seed,
    )
    if args.json:
        print_json(explanation_data(found))
        return 0
    out = console()
    for part in explanation_parts(found):
        out.print(part, soft_wrap=isinstance(part, str))
    return 0
