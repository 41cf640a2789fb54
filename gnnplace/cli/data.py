"""``gnnplace data``: captures models as graphs to learn from, or checks a folder of them."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.console import names_in, say
from gnnplace.cli.numbers import add_options
from gnnplace.errors import InputError

SUMMARY = "Captures models as graphs to learn from; or checks a folder of graphs."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("action", help="build or verify.")
    parser.add_argument("folder", help="The folder: one file a graph, a card and checksums.")
    add_options(
        parser,
        ("--recipe", str, "store", "For build: the recipe to capture."),
        (
            "--models",
            str,
            "",
            "For build: models or families, separated by commas; all by default.",
        ),
    )


def run(args: Namespace) -> int:
    """Builds a folder of captured graphs, or checks one."""
    if args.action == "verify":
        count = gnnplace.verify_data(args.folder)
        say(f"{args.folder}: {count} graphs, as their checksums say")
        return 0
    if args.action != "build":
        raise InputError(
            f"data: action {args.action!r} is unknown; use: gnnplace data build|verify FOLDER"
        )
    models = names_in(args.models)
    gnnplace.build_data(args.folder, recipe_name=args.recipe, models=models, progress=say)
    return 0
