from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.graph.kernel_arrays import (
    MANY,
    ascending,
    copy_rows,
    copy_to,
    greatest,
    heap_pop,
    heap_push,
)


@settings(max_examples=100, deadline=None)
@given(keys=st.lists(st.integers(0, 40), max_size=300), nearly=st.booleans())
def test_ascending_is_a_stable_sort(keys, nearly):
    array = np.array(sorted(keys) if nearly else keys, dtype=np.float64)
    if nearly and len(array) > 3:
        array[1], array[-1] = array[-1], array[1]
    assert ascending(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("kind", ["floats", "few", "negative", "alike", "infinite"])
def test_many_keys_are_sorted_as_few_are(kind):
    rng = np.random.default_rng(0)
    keys = {
        "floats": rng.exponential(size=MANY),
        "few": rng.integers(0, 9, MANY).astype(np.float64),
        "negative": rng.normal(size=MANY) * 10.0 ** rng.integers(-300, 300, MANY),
        "alike": np.ones(MANY),
        "infinite": np.where(rng.random(MANY) < 0.5, np.inf, -0.0),
    }[kind]
    keys[rng.integers(0, MANY, 5)] = 0.0
    assert (ascending(keys) == np.argsort(keys, kind="stable")).all()


def test_infinite_keys_come_last():
    assert ascending(np.array([np.inf, 1.0, -np.inf, np.inf])).tolist() == [2, 1, 0, 3]


def test_copies_leave_the_rest_as_it_is():
    target = np.zeros(4)
    copy_to(target, np.array([1.0, 2.0]))
    assert target.tolist() == [1.0, 2.0, 0.0, 0.0]
    rows = np.zeros((2, 3))
    copy_rows(rows, np.ones((1, 2)))
    assert rows.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
def test_greatest_is_the_largest(kind):
    values = np.array([3, 7, -2], dtype=kind)
    assert greatest(values) == 7


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40), st.integers(0, 3)
)
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
