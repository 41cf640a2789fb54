from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.simulation.heaps import heap_pop, heap_push


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40), st.integers(0, 3))
def test_pops_what_heapq_pops(steps, low):
    """A number is pushed as a key, None pops; equal keys go by item; what lies before stays."""
    keys, items = np.full(low + 40, -1.0), np.full(low + 40, -1, np.int32)
    expected: list[tuple[float, int]] = []
    for item, step in enumerate(steps):
        count = len(expected)
        if step is not None:
            heap_push(keys, items, low, count, float(step), item)
            heappush(expected, (float(step), item))
        elif count > 0:
            assert heap_pop(keys, items, low, count) == heappop(expected)[1]
    while expected:
        count = len(expected)
        assert heap_pop(keys, items, low, count) == heappop(expected)[1]
    assert (items[:low] == -1).all()
