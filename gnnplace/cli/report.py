"""``gnnplace report``: one self-contained page about placements of one problem."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from gnnplace import api
from gnnplace.cli.console import check_output, console
from gnnplace.cli.options import add_output

SUMMARY = "Writes a page about placements of one problem: timelines, memory, the graph."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("problem", help="The problem file.")
    parser.add_argument("placements", nargs="+", help="The placement files.")
    add_output(parser, "The page to write, such as report.html.")
    parser.add_argument(
        "--trace", default=None, help="A trace.json to write as well; it opens in Perfetto."
    )


def run(args: Namespace) -> int:
    """Writes the page, and the trace if it is asked for."""
    check_output(args.output)
    check_output(args.trace)
    api.write_report(args.problem, args.placements, args.output, trace=args.trace)
    console(args.output).print(f"written to {args.output}")
    return 0
