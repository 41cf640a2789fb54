"""The clock of budgets: what a deadline means to placers and to what they share.

A deadline is what ``now`` will say when one has to be back. ``NO_BUDGET`` stands for budget 0: one
whole construction, or a fixed number of steps, however long that takes.

A search does not look at its budget but to end: what it does next depends on the seed and on what
it did so far. So a larger budget goes on where a smaller one was cut off, and is never worse. To
test that without a stopwatch, ``counted`` has ``now`` count how often it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

NO_BUDGET = 0.0
_counts: list[Iterator[int]] = []


def now() -> float:
    """Seconds of ``time.perf_counter()``; within ``counted`` how often it was asked."""
    return float(next(_counts[-1])) if _counts else time.perf_counter()


@contextmanager
def counted() -> Iterator[None]:
    """Within it a budget is so many looks at the clock, the same on every machine."""
    _counts.append(count(1))
    try:
        yield
    finally:
        _counts.pop()


def expired(deadline: float) -> bool:
    """Whether a budget is used up; never so without a budget."""
    return NO_BUDGET < deadline <= now()
