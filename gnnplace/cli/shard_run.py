"""``gnnplace shard-run``, the old word for ``shard --executable`` and then ``execute``."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, print_answer, say
from gnnplace.errors import ExecutionError, InputError
from gnnplace.report.plans import run_lines
from gnnplace.report.sharding import planned_lines
from gnnplace.sharding.answers import EXECUTED_DEVICES, SplitOptions

SUMMARY = "Splits a model by figures measured here, runs it, and times it beside DDP."
OLD_WORD = (
    "shard-run: an old word; `gnnplace shard {model} --executable -o plan.json` makes a plan, and "
    "`gnnplace execute {model} plan.json` runs it"
)


def run(args: Namespace) -> int:
    """Runs the best strategy by figures measured here, or a plan."""
    check_output(args.output)
    say(OLD_WORD.format(model=args.what))
    devices = EXECUTED_DEVICES if args.devices is None else args.devices
    if args.plan is not None:
        plan = gnnplace.read_shard_plan(args.plan)
        there = len(plan.file.stages[0].device_names)
        if args.devices not in (None, there):
            raise InputError(f"--devices: the plan {args.plan!r} is for {there} devices")
    else:
        from gnnplace.plans.sharded import measured_here

        machine, seconds = measured_here(args.what, devices, args.timeout)
        plan = gnnplace.plan_shard(
            args.what,
            SplitOptions(devices),
            memory_limit=args.memory_limit,
            machine=machine,
            seconds=seconds,
        )
    done = gnnplace.run_plan(
        plan, args.what, train=0, steps=args.steps, timeout=args.timeout, beside=True
    )
    assert done is not None  # these are workers of its own
    if args.output is not None:
        plan.save(args.output)
    told = planned_lines(plan.split) if plan.split else []
    print_answer(args, done.answer, lambda: [*told, *run_lines(done)])
    if not done.passed:
        raise ExecutionError(f"{args.what}: {done.verification.summary()}")
    return 0
