"""``gnnplace convert``: public profiles and graphs of others as problems."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.console import check_output, console
from gnnplace.cli.numbers import add_options
from gnnplace.cli.options import add_output
from gnnplace.problem import write_problem
from gnnplace.problem.formats import READERS

SUMMARY = "Reads a public profile or graph and writes it as a problem."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("file", help="The profile or graph to read.")
    parser.add_argument(
        "--from", dest="format", required=True, help=f"Its format: {', '.join(READERS)}."
    )
    add_options(
        parser,
        ("--cluster", str, None, "A preset's name or a YAML file; not every format has one."),
    )
    add_output(parser, "The file to write, such as problem.json.")


def run(args: Namespace) -> int:
    """Reads and writes."""
    check_output(args.output)
    cluster = gnnplace.resolve_cluster(args.cluster) if args.cluster else None
    problem = gnnplace.convert(args.file, args.format, cluster)
    write_problem(args.output, problem)
    console(args.output).print(
        f"{problem.name}: {problem.num_ops} ops, {problem.graph.num_tensors} tensors, "
        f"{problem.num_devices} devices; written to {args.output}"
    )
    return 0
