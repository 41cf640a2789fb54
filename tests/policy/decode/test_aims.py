from __future__ import annotations

import pytest

from gnnplace.policy.decode.aims import ANY_LOAD, ORDERS, Aim, device_limits, possible_aims
from gnnplace.policy.decode.walk import COORDINATE
from gnnplace.train.data.random_families import random_problem


def problem_on(devices, microbatches=1):
    return random_problem(
        "layered", 3, ops=(30, 40), devices=(devices, devices), microbatches=(microbatches,)
    )


@pytest.mark.parametrize("devices", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("tight", [False, True])
def test_aims_differ_and_are_within_the_devices(devices, microbatches, tight):
    aims = possible_aims(problem_on(devices, microbatches), ORDERS, tight=tight)
    assert len(set(aims)) == len(aims)
    assert any(aim.limit == 1 for aim in aims[:2])
    assert {aim.limit for aim in aims} <= set(range(1, devices + 1))
    assert devices in {aim.limit for aim in aims}
    assert all(aim.rounds == 1 or aim.order == COORDINATE for aim in aims)


def test_chunks_of_fewest_transfers_are_for_tight_memory_without_microbatches():
    def any_load(microbatches, tight):
        aims = possible_aims(problem_on(4, microbatches), ORDERS, tight=tight)
        return [a.limit for a in aims if a.order == COORDINATE and a.lean == ANY_LOAD]

    assert sorted(any_load(1, True)) == [2, 4]
    assert any_load(1, False) == any_load(4, True) == []


def test_one_order_alone():
    aims = possible_aims(problem_on(4), ("topological",), tight=False)
    assert set(aims) == {Aim("topological", limit) for limit in (1, 2, 4)}


@pytest.mark.parametrize(("count", "limits"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_device_limits_are_powers_of_two_and_all(count, limits):
    assert device_limits(count) == limits
