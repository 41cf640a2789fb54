from __future__ import annotations

import time

from gnnplace.placers.search.clock import NO_BUDGET, counted, expired, now


def test_without_a_budget_nothing_expires():
    assert not expired(NO_BUDGET)


def test_a_budget_expires_when_its_time_has_come():
    at = time.perf_counter()
    assert expired(at)
    assert not expired(at + 60)


def test_the_clock_counts_how_often_it_is_asked():
    with counted():
        assert [now(), now(), now()] == [1.0, 2.0, 3.0]
        assert not expired(NO_BUDGET)
        assert expired(4.0)
        with counted():
            assert now() == 1.0
    assert now() != 5.0
