"""``gnnplace execute``: runs a placement, checks it, measures it; on several hosts, too.

``gnnplace execute`` of a joint plan: on workers here, or one process of torchrun's.
"""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    check_output,
    console,
    open_store,
    print_json,
    say,
    say_kept,
    show_answer,
)
from gnnplace.cli.placed import find_placed_options, name_cluster
from gnnplace.errors import ExecutionError
from gnnplace.files import read_json
from gnnplace.foreign import check_installed
from gnnplace.planning import read_plan
from gnnplace.plans import check_cluster, is_plan
from gnnplace.report import check_drawable, describe, write_answer

if TYPE_CHECKING:
    from gnnplace.run.workers import Hosts


def run(args: Namespace) -> int:
    """Run a placement on workers, verify it and measure it.

    Under `torchrun` it runs on several hosts.
    """
    if args.dry_run is not None:
        return _dry_run(args)
    if is_plan(args.placement):
        check_output(args.html)
        if args.html is not None:
            check_drawable(args.html)
        return run_plan(args)
    hosts = _hosts()
    if hosts is not None:
        signal.signal(signal.SIGTERM, _stop)
        if not hosts.first:
            return _help(args, hosts)
    check_output(args.trace, args.html)
    data = read_json(args.placement)
    store = open_store(args.store)
    options = find_placed_options(args, data)
    check_installed("torch")
    say(f"capturing the step of {args.model}")
    program = gnnplace.capture(args.model, options=options)
    gnnplace.say_batch(program, say)
    cluster = gnnplace.resolve_cluster(args.cluster or name_cluster(data))
    problem = gnnplace.profile(program, cluster, options=options, progress=say)
    placement, problem = gnnplace.read_placement_for(args.placement, problem)
    executed = gnnplace.execute(
        program,
        problem,
        placement,
        options=options,
        run=_execution_options(args, hosts),
        record=gnnplace.RecordOptions(store=store, label=args.model),
        progress=say,
    )
    say_kept(executed.fault)
    predicted = gnnplace.simulate(problem, placement)
    describe_run = partial(
        describe,
        executed,
        problem=problem,
        predicted=predicted,
        name=placement.placer or "placement",
        forward_only=options.forward_only,
    )
    write_answer(describe_run(), page=args.html, trace=args.trace)
    # Eager steps are timed beside the run where they do the same work: float32 training.
    is_comparable = not (
        args.no_eager or options.forward_only or options.dtype != "float32"
    )
    if is_comparable:
        eager = gnnplace.eager_times(args.model, options, say)
    else:
        eager = {}
    show_answer(args, describe_run(eager=eager))
    return 0 if executed.passed else 1


def _dry_run(args: Namespace) -> int:
    """Print whether GPUs could run a placement."""
    options = find_placed_options(args, read_json(args.placement))
    report = gnnplace.dry_run(
        args.model, args.placement, options=options, claim=args.dry_run
    )
    if args.json:
        print_json({**asdict(report), "passed": report.passed})
    else:
        console().print(report.summary(), soft_wrap=True, markup=False, highlight=False)
    return 0 if report.passed else 1


def _hosts() -> Hosts | None:
    """Return the hosts if `torchrun` started this process on several, else None.

    Torch is needed for several hosts alone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    from gnnplace.run.workers import from_environment

    return from_environment()


def _stop(number: int, frame: object) -> None:
    """End the run on SIGTERM: workers are reaped and the store records why."""
    raise ExecutionError("stopped by SIGTERM, as when another host has failed")


def _help(args: Namespace, hosts: Hosts) -> int:
    """Run this host's share of a placement, while the first host verifies and reports.

    Nothing is measured beforehand, because only the structure of the problem matters here.
    """
    from gnnplace.run.placed import read_unbound_placement

    data = read_json(args.placement)
    options = find_placed_options(args, data)
    program = gnnplace.capture(args.model, options=options)
    unbound = read_unbound_placement(
        args.placement, None, microbatches=options.microbatches, groups=options.groups
    )
    problem, placement = unbound.bind(program, None)
    gnnplace.execute(
        program,
        problem,
        placement,
        options=options,
        run=_execution_options(args, hosts),
    )
    return 0


def _execution_options(
    args: Namespace, hosts: Hosts | None
) -> gnnplace.ExecutionOptions:
    """Return the options of workers.

    On several hosts, `auto` means to measure, because each host has cores of its own.
    """
    return gnnplace.ExecutionOptions(
        steps=args.steps,
        mode="measured" if hosts and args.mode == "auto" else args.mode,
        transport=args.transport,
        timeout=args.timeout,
        hosts=hosts,
    )


def run_plan(args: Namespace) -> int:
    """Run a plan, compare it with one device, and measure it."""
    plan = read_plan(args.placement)
    check_cluster(plan.file, args.placement)
    if os.environ.get("RANK", "0") == "0":
        say(
            f"executing: {len(plan.file.stages)} stages, {plan.microbatches} micro-batches"
        )
    plan_run = gnnplace.run_plan(
        plan,
        args.model,
        train=args.train,
        steps=args.steps,
        timeout=args.timeout,
        beside=args.beside,
    )
    if plan_run is None:
        return 0
    answer = describe(plan_run)
    write_answer(answer, page=args.html)
    show_answer(args, answer)
    return 0 if plan_run.passed else 1
