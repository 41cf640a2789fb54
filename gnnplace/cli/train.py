"""``gnnplace train``: the policy, by Lightning's own command line."""

from __future__ import annotations

SUMMARY = "Trains, validates, tests or tunes the policy; recipes are in trainers/."


def run(arguments: list[str]) -> int:
    """Hands the arguments to Lightning's command line, which parses them itself.

    Args:
        arguments: those after ``gnnplace train``.
    """
    from gnnplace.train.cli import main

    main(arguments)
    return 0
