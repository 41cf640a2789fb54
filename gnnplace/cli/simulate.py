"""``gnnplace simulate``: predicted step time, peak memory and busy share of every device."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, say_idle, show_answer
from gnnplace.problem import Problem, read_problem
from gnnplace.simulation import Simulation


def run(args: Namespace) -> int:
    """Predict a placement's step."""
    check_output(args.html, args.trace)
    placement, problem = gnnplace.read_placement_for(
        args.placement, read_problem(args.problem)
    )
    say_idle(problem)
    simulation = gnnplace.simulate(problem, placement)
    _write_views(
        args, problem, simulation, placement.placer or Path(args.placement).stem
    )
    from gnnplace.report import simulation_answer

    show_answer(args, simulation_answer(problem, simulation))
    return 0


def _write_views(
    args: Namespace, problem: Problem, simulation: Simulation, name: str
) -> None:
    """Write the simulated step as a Chakra trace, a page and a trace, if these are asked for."""
    if args.chakra is not None:
        from gnnplace.report import write_chakra

        write_chakra(args.chakra, problem, simulation)
    if args.html is None and args.trace is None:
        return
    from gnnplace.report import from_simulation

    timeline = from_simulation(problem, simulation, name)
    if args.html is not None:
        from gnnplace.report import write_placements

        write_placements(args.html, problem, [timeline])
    if args.trace is not None:
        from gnnplace.report import write_trace

        write_trace(args.trace, [timeline])
