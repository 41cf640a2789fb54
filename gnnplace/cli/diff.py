"""``gnnplace diff``: which modules two placements have on other devices, and what came of it."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from gnnplace import api
from gnnplace.cli.console import console, print_json
from gnnplace.cli.options import add_json
from gnnplace.cli.placed import add_placed, read_placed
from gnnplace.report.explanation import difference_data, difference_parts

SUMMARY = "Compares two placements of one model: what moved, and what that changes."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_placed(parser, "before", "after")
    add_json(parser)


def run(args: Namespace) -> int:
    """Compares two placements."""
    first, before, asked = read_placed(args, args.before)
    second, after, other = read_placed(args, args.after)
    first, second = api.constrained(first, asked), api.constrained(second, other)
    found = api.difference(first, before, after, second)
    if args.json:
        print_json(difference_data(found))
        return 0
    out = console()
    for part in difference_parts(found):
        out.print(part, soft_wrap=isinstance(part, str))
    return 0
