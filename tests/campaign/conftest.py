"""Counts what the campaign did; ``tests/conftest.py`` prints the table of counts at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def counted(
    record_property: Callable[[str, object], None],
) -> Callable[[str, int], None]:
    """Adds to the count of a kind of fault."""

    def add(kind: str, number: int = 1) -> None:
        record_property(f"campaign: {kind}", number)

    return add
