"""``--device-map``: the answer of ``place`` as modules and devices, for accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.console import check_output
from gnnplace.cli.options import AUTO
from gnnplace.cli.progress import say
from gnnplace.errors import InputError
from gnnplace.problem import Problem
from gnnplace.problem.placement import Placement

if TYPE_CHECKING:
    from gnnplace.tracing.program import Program


def add_device_map(parser: ArgumentParser) -> None:
    """Declares where the device map is written."""
    parser.add_argument(
        "--device-map",
        default=None,
        help="Write the modules' devices too, as map.json, for accelerate's dispatch_model and "
        "from_pretrained; --by-module searches for such an answer.",
    )


def check_device_map(args: Namespace) -> None:
    """Refuses what no device map can be made of, before the work.

    Raises:
        InputError: a problem's file, or micro-batches; or no such folder.
    """
    if args.device_map is None:
        return
    check_output(args.device_map)
    if gnnplace.is_problem_file(args.what):
        raise InputError("--device-map: names modules; give the model, not its problem file")
    if args.microbatches != 1:
        raise InputError(
            "--device-map: accelerate runs the batch as a whole; leave --microbatches out"
        )


def captured_program(args: Namespace, options: gnnplace.CaptureOptions) -> Program | None:
    """The captured model, where a device map is made of it."""
    if args.device_map is None:
        return None
    return gnnplace.capture_for(args.what, args.cluster or AUTO, options, say)


def device_map_of(
    args: Namespace, program: Program | None, problem: Problem, placement: Placement
) -> dict[str, int | str] | None:
    """The device map of a placement, checked by the model's own code; None if none is asked for.

    Raises:
        InputError: the placement is none by module; names the module.
    """
    if program is None:
        return None
    found = gnnplace.device_map(program, problem, placement)
    unchecked = gnnplace.check_device_map(args.what, found, forward_only=args.forward_only)
    if unchecked:
        say(f"note: the device map was not checked by running the model's code: {unchecked}")
    return found
