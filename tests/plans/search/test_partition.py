from __future__ import annotations

import numpy as np
import pytest

from gnnplace.plans.search.partition import (
    KEPT,
    SECONDS,
    STATE,
    WIDTH,
    largest_at_work,
    stage_seconds,
)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_a_stage_has_room_for_its_own_largest_values_alone(count):
    rng = np.random.default_rng(count)
    seconds, kept, state, working = rng.integers(1, 9, size=(4, count)).astype(
        np.float64
    )
    sums = np.zeros((WIDTH, count + 1))
    for row, values in ((SECONDS, seconds), (KEPT, kept), (STATE, state)):
        sums[row, 1:] = np.cumsum(values)
    sums = np.concatenate([sums, largest_at_work(working)])
    for first in range(count):
        for last in range(first + 1, count + 1):
            run = slice(first, last)
            needed = state[run].sum() + working[run].max() + 2 * kept[run].sum()
            assert stage_seconds(sums, needed, first, last, 2) == seconds[run].sum()
            assert stage_seconds(sums, needed - 1, first, last, 2) == np.inf
