from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.simulation.bounds.one_machine import bound_units, sort_jobs_by_unit
from tests.random_problems import seeds


def bound(head, tail, *columns) -> float:
    """The bound of one unit whose jobs take ``columns`` on devices of each column."""
    group = np.arange(len(head), dtype=np.int32)
    times = np.stack(columns, axis=1)
    jobs = sort_jobs_by_unit(np.zeros_like(group), head)
    return float(bound_units(*jobs, group, times, head, tail)[0])


def largest_set(head, tail, work) -> float:
    """Least head + work + least tail of the worst set of jobs (Carlier, 1982)."""
    jobs = range(len(head))
    sets = (list(s) for size in jobs for s in combinations(jobs, size + 1))
    return max(head[s].min() + work[s].sum() + tail[s].min() for s in sets)


@settings(max_examples=200, deadline=None)
@given(seed=seeds, count=st.integers(1, 7))
def test_it_is_the_largest_over_all_sets(seed, count):
    rng = np.random.default_rng(seed)
    head, tail, work = rng.integers(0, 9, (3, count)).astype(float)
    assert bound(head, tail, work) == pytest.approx(largest_set(head, tail, work))


def test_a_unit_is_on_the_device_that_is_best_for_it():
    head, tail = np.zeros(2), np.zeros(2)
    mixed = np.array([3.0, 1.0]), np.array([1.0, 2.0])
    assert bound(head, tail, *mixed) == 3.0
    assert bound(head, tail, mixed[0], np.array([1.0, np.inf])) == 4.0


def test_a_unit_without_a_device_has_no_bound():
    assert bound(np.zeros(1), np.ones(1), np.array([np.inf])) == 0.0
