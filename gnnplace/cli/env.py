"""``gnnplace env``: versions, machine, and where caches are and how large: for a bug report."""

from __future__ import annotations

from jsonargparse import Namespace
from rich.table import Table

import gnnplace
from gnnplace.cli.console import console, print_json


def run(args: Namespace) -> int:
    """Print the environment."""
    environment = gnnplace.environment()
    if args.json:
        print_json(environment)
        return 0
    table = Table("what", "value", show_header=False)
    for part, values in environment.items():
        for name, value in values.items():
            table.add_row(f"{part}: {name}", str(value))
    console().print(table)
    return 0
