"""``gnnplace data``: captures models as graphs to learn from, or checks a folder of them."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import names_in, say
from gnnplace.errors import InputError


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
