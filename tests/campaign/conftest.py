"""Counts what the campaign did, and prints the table of counts at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

COUNTS: Counter[str] = Counter()


@pytest.fixture
def counted() -> Callable[[str, int], None]:
    """Adds to the count of a kind of fault."""

    def add(kind: str, number: int = 1) -> None:
        COUNTS[kind] += number

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTS:
        terminalreporter.section("campaign")
        for kind, number in sorted(COUNTS.items()):
            terminalreporter.write_line(f"{number:7}  {kind}")
