"""``gnnplace simulate``: predicted step time, peak memory and busy share of every device."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, say_idle, show_answer
from gnnplace.problem import read_problem
from gnnplace.report import describe, write_answer


def run(args: Namespace) -> int:
    """Predict a placement's step."""
    check_output(args.html, args.trace)
    placement, problem = gnnplace.read_placement_for(
        args.placement, read_problem(args.problem)
    )
    say_idle(problem)
    simulation = gnnplace.simulate(problem, placement)
    name = placement.placer or Path(args.placement).stem
    answer = describe(simulation, problem=problem, name=name)
    write_answer(answer, page=args.html, trace=args.trace, chakra=args.chakra)
    show_answer(args, answer)
    return 0
