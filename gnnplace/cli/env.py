"""``gnnplace env``: versions, machine, and where caches are and how large: for a bug report."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import show_answer
from gnnplace.report import describe


def run(args: Namespace) -> int:
    """Print the environment."""
    show_answer(args, describe(gnnplace.environment()))
    return 0
