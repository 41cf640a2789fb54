"""The clock of budgets: what a deadline means to placers and to what they share.

A deadline is a ``time.perf_counter()`` at which to be back. ``NO_BUDGET`` stands for budget 0: one
whole construction, or a fixed number of steps, however long that takes.
"""

from __future__ import annotations

import time

NO_BUDGET = 0.0


def expired(deadline: float) -> bool:
    """Whether a budget is used up; never so without a budget."""
    return NO_BUDGET < deadline <= time.perf_counter()


def share_of(deadline: float, share: float) -> float:
    """The deadline of one who may use ``share`` (0 to 1) of what is left; none has none."""
    if deadline <= NO_BUDGET:
        return NO_BUDGET
    now = time.perf_counter()
    return now + share * max(0.0, deadline - now)
