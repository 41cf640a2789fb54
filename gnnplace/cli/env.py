"""``gnnplace env``: versions, machine, and where caches are and how large: for a bug report."""

from __future__ import annotations

from operator import itemgetter

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import print_answer
from gnnplace.report import Column, Table, boxed


def run(args: Namespace) -> int:
    """Print the environment."""
    environment = gnnplace.environment()
    rows = [
        (f"{part}: {name}", str(value))
        for part, values in environment.items()
        for name, value in values.items()
    ]
    table = Table(
        columns=[
            Column("what", itemgetter(0), words=True),
            Column("value", itemgetter(1), words=True),
        ],
        rows=rows,
    )
    print_answer(args, lambda: environment, lambda: boxed(table))
    return 0
