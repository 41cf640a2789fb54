from __future__ import annotations

import time

from gnnplace.search.clock import NO_BUDGET, expired, share_of


def test_without_a_budget_nothing_expires():
    assert not expired(NO_BUDGET)
    assert share_of(NO_BUDGET, 0.5) == NO_BUDGET


def test_a_budget_expires_when_its_time_has_come():
    now = time.perf_counter()
    assert expired(now)
    assert not expired(now + 60)


def test_a_share_is_of_what_is_left():
    now = time.perf_counter()
    assert 29 < share_of(now + 60, 0.5) - now < 31
    assert expired(share_of(now - 5, 0.5))
    assert share_of(now - 5, 0.5) > now - 1
