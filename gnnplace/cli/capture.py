"""``gnnplace capture``: a model's training step, or its inference, as a graph."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, console, say
from gnnplace.cli.options import (
    capture_options,
    options_entry,
)
from gnnplace.files import write_json
from gnnplace.foreign import check_installed
from gnnplace.problem import problem_to_data
from gnnplace.units import bytes_text


def run(args: Namespace) -> int:
    """Capture a model and write its step."""
    check_output(args.output)
    options = capture_options(args)
    check_installed("torch")
    say(f"capturing the step of {args.model}")
    program = gnnplace.capture(args.model, options=options, fake=args.fake)
    problem = gnnplace.make_estimated_problem(program, options)
    write_json(args.output, problem_to_data(problem) | options_entry(options))
    console(args.output).print(
        f"{program.name}: {len(program.ops)} ops captured, {problem.num_ops} after grouping, "
        f"{bytes_text(problem.state.sum())} of state; written to {args.output}"
    )
    return 0
