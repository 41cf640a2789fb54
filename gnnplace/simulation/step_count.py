"""Counts simulated steps, so that a budget can be a number of them and not of seconds.

A search with a budget in simulated steps does the same on every machine, busy or not, so that its
rows repeat bit by bit. One step is one placement whose time is computed: by the simulator, as a
move of a local search (even if the simulation ends early because the move is worse), or as a pass
of refinement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LOOK = 0.01  # steps that a look at the clock counts for, so that every search ends
_counters: list[list[float]] = []


def count_steps(number: float = 1) -> None:
    """Add simulated steps to the count, within ``count_budget_steps``."""
    if _counters:
        _counters[-1][0] += number


def steps_so_far() -> float | None:
    """Return the steps simulated so far; None outside of ``count_budget_steps``."""
    if not _counters:
        return None
    _counters[-1][0] += LOOK
    return _counters[-1][0]


@contextmanager
def count_budget_steps() -> Iterator[None]:
    """Have the clock of budgets (``placers.search.space.now``) count simulated steps within it."""
    _counters.append([0.0])
    try:
        yield
    finally:
        _counters.pop()
