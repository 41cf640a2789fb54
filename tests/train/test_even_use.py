from __future__ import annotations

import numpy as np
import pytest

from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem
from gnnplace.train.even_use import EVEN, unevenness


@pytest.fixture(scope="module")
def episodes():
    shape = {"ops": (40, 60), "devices": (4, 4), "microbatches": (1,)}
    return Episodes(SearchSpace(random_problem("layered", 5, **shape)), "upward-rank")


def divided(episodes, shares):
    """Units in turn to devices, so that each has about its share of the work."""
    work, load = episodes.walk.unit_work, np.zeros(len(shares))
    devices = np.zeros(len(work), np.int32)
    for unit in np.argsort(-work, kind="stable"):
        devices[unit] = np.argmin((load + work[unit]) / shares)
        load[devices[unit]] += work[unit]
    return devices


def test_even_use_of_as_many_devices_as_asked_for_costs_nothing_more(episodes):
    for count in (1, 2, 4):
        assert unevenness(episodes, divided(episodes, np.ones(count)), count) == 1.0
    assert unevenness(episodes, divided(episodes, np.array([3.0, 1.0])), 2) == 1.0


def test_devices_that_are_missing_cost_what_is_missing(episodes):
    alone = np.zeros(episodes.space.problem.num_units, np.int32)
    assert unevenness(episodes, alone, 2) == pytest.approx(1.0 + EVEN - 1 / 2)
    assert unevenness(episodes, alone, 4) == pytest.approx(1.0 + EVEN - 1 / 4)


def test_each_device_too_many_costs_another_time_the_seconds(episodes):
    four = divided(episodes, np.ones(4))
    assert unevenness(episodes, four, 2) == 3.0
    assert unevenness(episodes, four, 1) == 4.0
