"""``gnnplace shard-run``: a split model on real processes, checked against one device, timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.console import check_output, print_json, print_lines, say
from gnnplace.cli.numbers import DEVICES, NOT_NEGATIVE, SECONDS, STEPS, add_options
from gnnplace.cli.options import add_json, add_output, model_help
from gnnplace.errors import ExecutionError, InputError
from gnnplace.report.sharding import run_data, run_lines
from gnnplace.sharding.answers import EXECUTED_DEVICES

if TYPE_CHECKING:
    from gnnplace.zoo import Workload

SUMMARY = "Runs a split model on processes here, checks it against one device, times it."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("what", metavar="MODEL", help=model_help("The model to split"))
    add_options(
        parser,
        ("--devices", (int, DEVICES), None, "The number of processes: 2 by default."),
        ("--plan", str, None, "The plan to run, instead of the best one found here."),
        ("--steps", (int, STEPS), 10, "The number of steps to time."),
        ("--timeout", (float, SECONDS), 300.0, "The seconds that the run may take."),
        ("--memory-limit", (float, NOT_NEGATIVE), None, "The bytes that a device has."),
    )
    add_json(parser)
    add_output(parser, "The file that the plan is written to.", required=False)


def run(args: Namespace) -> int:
    """Runs the best strategy that DTensor can run, or a plan."""
    from gnnplace.runtime.workers import available_cores
    from gnnplace.sharding.run.plan import read_shard_plan

    check_output(args.output)
    plan = None if args.plan is None else read_shard_plan(args.plan)
    devices = EXECUTED_DEVICES if args.devices is None else args.devices
    if plan is not None:
        devices = math.prod(plan.mesh)
        if args.devices not in (None, devices):
            raise InputError(f"--devices: the plan {args.plan!r} is for {devices} devices")
    say(f"running on {devices} process{'es' if devices != 1 else ''}")
    done = gnnplace.run_shard(
        maker(args.what),
        devices,
        plan=plan,
        steps=args.steps,
        timeout=args.timeout,
        memory_limit=args.memory_limit,
    )
    if args.output is not None:
        done.plan.save(args.output)
    if args.json:
        print_json(run_data(done))
    else:
        print_lines(*run_lines(done, devices, len(available_cores())))
    if not done.verification.passed:
        raise ExecutionError(f"{args.what}: {done.verification.summary()}")
    return 0


def maker(spec: str) -> Callable[[], Workload]:
    """What makes the model anew in every process."""

    def make() -> Workload:
        from gnnplace import tracing

        return tracing.load(spec)

    return make
