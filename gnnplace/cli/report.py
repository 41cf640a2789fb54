"""``gnnplace report``: one self-contained page about placements of one problem."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, console
from gnnplace.plans import read_plan
from gnnplace.report import describe, write_answer


def run(args: Namespace) -> int:
    """Write the page, and the trace if it is asked for."""
    check_output(args.output, args.trace)
    if not args.placements:
        return _plan(args)
    gnnplace.write_report(args.problem, args.placements, args.output, trace=args.trace)
    console(args.output).print(f"written to {args.output}")
    return 0


def _plan(args: Namespace) -> int:
    """Write the page of a joint plan, and its trace if that is asked for."""
    answer = describe(read_plan(args.problem))
    write_answer(answer, page=args.output, trace=args.trace)
    console(args.output).print(f"written to {args.output}")
    return 0
