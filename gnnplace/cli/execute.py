"""``gnnplace execute``: runs a placement, checks it, measures it; on several hosts, too.

``gnnplace execute`` of a joint plan: on workers here, or one process of torchrun's.
"""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    check_output,
    console,
    open_store,
    print_answer,
    print_json,
    say,
    say_kept,
)
from gnnplace.cli.placed import cluster_of, find_placed_options
from gnnplace.errors import ExecutionError
from gnnplace.files import read_json, write_text
from gnnplace.foreign import check_installed
from gnnplace.measurements import is_disturbed
from gnnplace.planning import read_plan
from gnnplace.plans import check_cluster, is_plan
from gnnplace.report import (
    check_drawable,
    eager_line,
    from_execution,
    from_simulation,
    plan_page,
    run_lines,
    write_placements,
    write_trace,
)
from gnnplace.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from gnnplace.run.workers import Hosts

RUN_WORDS = (
    "wall: the clock; virtual: the workers' own processor time, undisturbed by others"
)


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
    cluster = gnnplace.resolve_cluster(args.cluster or cluster_of(data))
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
    name = placement.placer or "placement"
    timelines = [
        from_execution(problem, executed.execution, name),
        from_simulation(problem, predicted, name),
    ]
    if args.trace:
        write_trace(args.trace, timelines)
    if args.html is not None:
        write_placements(args.html, problem, timelines, beside=True)
    # Eager steps are timed beside the run where they do the same work: float32 training.
    is_comparable = not (
        args.no_eager or options.forward_only or options.dtype != "float32"
    )
    if is_comparable:
        eager = gnnplace.eager_times(args.model, options, say)
    else:
        eager = {}
    names = [device.name for device in problem.cluster.devices]
    memory = dict(zip(names, predicted.peak_memory.tolist(), strict=True))
    _print_run(args, executed, predicted.step_time, eager, memory, options)
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


def _print_run(
    args: Namespace,
    run: gnnplace.Executed,
    predicted: float,
    eager: dict[int, float],
    memory: dict[str, float],
    options: gnnplace.CaptureOptions,
) -> None:
    execution = run.execution
    rows = [(step.wall, step.virtual, step.interrupted) for step in execution.steps]
    on_gpus = any(name.startswith("cuda:") for name in execution.devices)
    disturbed = execution.mode == "measured" and not on_gpus and is_disturbed(rows)
    if args.json:
        answer = {
            "mode": execution.mode,
            "step_time": execution.step_time,
            "wall_step_time": execution.wall_step_time,
            "virtual_step_time": execution.virtual_step_time,
            "predicted_step_time": predicted,
            "comparable": not execution.caveat,
            "disturbed": disturbed,
            "verified": run.passed,
            "bitwise": run.verification.bitwise,
            "peak_memory": execution.peak_memory,
            "predicted_peak_memory": memory,
            "memory": {
                name: asdict(device_memory)
                for name, device_memory in execution.memory.items()
            },
            "loss": execution.first.loss if execution.first else None,
            "eager_step_time": {
                str(cores): seconds for cores, seconds in eager.items()
            },
        }
        print_json(answer)
        return
    out = console()
    if execution.caveat:
        prediction = ""
    else:
        prediction = f"predicted {seconds_text(predicted)}"
    wall = execution.wall_step_time
    virtual = execution.virtual_step_time
    if disturbed:
        # The wall clock timed the other programs as well; the workers' own time is what compares.
        if prediction:
            comparison = f" ({prediction})"
        else:
            comparison = ""
        line = (
            f"measured: {seconds_text(virtual)} of the workers' own time{comparison}; "
            f"{seconds_text(wall)} by the clock, because other programs had the cores "
            f"(medians of {len(execution.steps)} steps, all interrupted)"
        )
    else:
        line = (
            f"{execution.mode} step time: {seconds_text(execution.step_time)} "
            f"({prediction}{'; ' if prediction else ''}median of {len(execution.steps)} steps, "
            f"{execution.num_interrupted} interrupted; wall {seconds_text(wall)}, "
            f"virtual {seconds_text(virtual)})"
        )
    out.print(line, soft_wrap=True)
    if execution.caveat:
        out.print(f"predicted step time: {seconds_text(predicted)}", soft_wrap=True)
        out.print(f"not to be compared: {execution.caveat}", soft_wrap=True)
    out.print(run.verification.summary(), soft_wrap=True)
    if not options.forward_only:
        out.print(run.whole.summary(), soft_wrap=True)
    for name, device_memory in execution.memory.items():
        buffers = f"message buffers {bytes_text(device_memory.messages)}"
        if device_memory.process is not None:
            process = bytes_text(device_memory.process)
            buffers = f"process and libraries {process}, {buffers}"
        peak = bytes_text(device_memory.peak)
        state = bytes_text(device_memory.state)
        out.print(
            f"memory of {name}: {peak} in a step, {state} of it state "
            f"(predicted {bytes_text(memory[name])}); held beside: {buffers}",
            soft_wrap=True,
        )
    if eager:
        out.print(eager_line(eager), soft_wrap=True)
    out.print(RUN_WORDS, soft_wrap=True)


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
    if args.html is not None:
        write_text(args.html, plan_page(plan_run.plan, run_lines(plan_run)))
    print_answer(args, plan_run.answer, lambda: run_lines(plan_run))
    return 0 if plan_run.passed else 1
