"""``gnnplace convert``: graphs as problems; plans and launch files as launch files, and back."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    check_output,
    console,
    print_lines,
    print_sections,
    say,
)
from gnnplace.cli.launch_files import check_launch_output, read_launch_file
from gnnplace.errors import InputError, suggestion
from gnnplace.files import write_text
from gnnplace.plans import READ_NAMES
from gnnplace.problem import READERS, write_problem
from gnnplace.report import describe


def run(args: Namespace) -> int:
    """Read a file and write it in another format."""
    check_output(args.output)
    check_launch_output(args.output, args.launcher)
    if args.launcher is not None:
        if args.format is not None and args.format not in READ_NAMES:
            raise InputError(
                f"--from {args.format}: --to goes with {', '.join(READ_NAMES)}"
            )
        if args.format is not None or gnnplace.is_launch_file(args.file):
            return _convert(args)
        return _export(args)
    if args.format is None:
        raise InputError("convert: give --from FORMAT, or --to LAUNCHER")
    if args.format in READ_NAMES:
        return _import(args)
    if args.format not in READERS:
        near = suggestion(args.format, [*READERS, *READ_NAMES])
        raise InputError(
            f"--from {args.format}: unknown; formats: {', '.join(READERS)}; "
            f"launchers: {', '.join(READ_NAMES)}{near}"
        )
    if args.cluster:
        cluster = gnnplace.resolve_cluster(args.cluster)
    else:
        cluster = None
    problem = gnnplace.convert(args.file, args.format, cluster)
    write_problem(args.output, problem)
    console(args.output).print(
        f"{problem.name}: {problem.num_ops} ops, {problem.graph.num_tensors} tensors, "
        f"{problem.num_devices} devices; written to {args.output}"
    )
    return 0


def _export(args: Namespace) -> int:
    """Write a plan as a launcher's file."""
    plan = gnnplace.read_plan(args.file)
    launch_file = gnnplace.export_plan(
        plan, args.launcher, model=args.model, cluster=args.cluster
    )
    if launch_file.beside is not None:
        path = Path(args.output).with_suffix(".csv")
        check_output(str(path))
        if path == Path(args.output):
            raise InputError(
                f"output {args.output!r}: is the schedule's name; end it with .py"
            )
        write_text(path, launch_file.beside)
    write_text(args.output, launch_file.text)
    planned = plan.for_launcher(args.launcher)
    print_sections(describe(launch_file, plan=planned, path=args.output))
    return 0


def _convert(args: Namespace) -> int:
    """Write one launcher's file as another's."""
    plan, name = read_launch_file(args, args.file, args.format)
    converted = gnnplace.convert_launch_file(
        plan, args.launcher, source_launcher=name, batch=args.batch, model=args.model
    )
    write_text(args.output, converted.text)
    print_sections(describe(converted, source=args.file, path=args.output))
    return 0


def _import(args: Namespace) -> int:
    """Import a launcher's file as a plan and write the plan."""
    if args.cluster is None:
        raise InputError(
            "--cluster: is needed to price a launch file, such as --cluster nvlink-a100-8"
        )
    launch_plan, _ = read_launch_file(args, args.file, args.format)
    print_lines(
        f"{Path(args.file).name}: {launch_plan.words or 'says nothing of a plan'}"
    )
    (plan,) = gnnplace.plan(
        args.model, args.cluster, batch=args.batch, given=launch_plan, progress=say
    )
    plan.save(args.output)
    print_sections(describe(plan))
    print_lines(f"written to {args.output}")
    return 0
