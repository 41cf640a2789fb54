"""``gnnplace data``: captures models as graphs to learn from, copies or checks a folder of them."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import parse_names, say
from gnnplace.errors import InputError


def run(args: Namespace) -> int:
    """Build a folder of captured graphs, copy one from a clone, or check one."""
    if args.action == "verify":
        count = gnnplace.verify_data(args.folder)
        say(f"{args.folder}: {count} graphs, as their checksums say")
        return 0
    if args.action == "collect":
        if args.source_clone is None:
            raise InputError(
                "data: collect: say --from CLONE, a clone of the set's repository"
            )
        count = gnnplace.collect_data(args.folder, args.source_clone)
        say(f"{args.folder}: {count} files, as their checksums say")
        return 0
    if args.action != "build":
        raise InputError(
            f"data: action {args.action!r} is unknown; use: gnnplace data build|collect|verify "
            "FOLDER"
        )
    models = parse_names(args.models)
    gnnplace.build_data(
        args.folder, recipe_name=args.recipe, models=models, progress=say
    )
    return 0
