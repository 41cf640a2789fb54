"""``gnnplace study``: experiments that can be run again, with their reports."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from gnnplace import api
from gnnplace.cli.console import names_in, say
from gnnplace.cli.numbers import COUNT, add_number
from gnnplace.cli.options import add_output
from gnnplace.errors import InputError

SUMMARY = "Trains and evaluates the policy under each traversal order, and reports."
PARTS = "seen,held-out,networks,searched,own"


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("what", help="The study: orders.")
    add_output(parser, "The folder of rows and reports; rows that are there are not run again.")
    parser.add_argument(
        "--orders", default="", help="Traversal orders, separated by commas; all by default."
    )
    add_number(parser, "--seeds", int, COUNT, default=3, help="The number of trainings an order.")
    add_number(
        parser,
        "--generations",
        int,
        COUNT,
        default=90,
        help="The number of generations of each training.",
    )
    parser.add_argument("--parts", default=PARTS, help="The parts of the problems to evaluate on.")
    parser.add_argument(
        "--report", action="store_true", help="Run nothing and report what is there."
    )


def run(args: Namespace) -> int:
    """Runs a study, resumable, and writes its report."""
    if args.what != "orders":
        raise InputError(f"study {args.what!r}: unknown; use: gnnplace study orders -o FOLDER")
    api.study_orders(
        args.output,
        orders=args.orders,
        seeds=args.seeds,
        generations=args.generations,
        parts=names_in(args.parts),
        run=not args.report,
        progress=say,
    )
    return 0
