from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem
from gnnplace.train.label_moves import EVEN, bettered, unevenness
from tests.policy.problems import constrained_problem
from tests.random_problems import seeds

torch.set_num_threads(1)


def started(problem, rng):
    """A problem and a random placement of it."""
    episodes = Episodes(SearchSpace(problem), "upward-rank")
    free = rng.integers(problem.num_devices, size=problem.num_units).astype(np.int32)
    first = np.array([np.flatnonzero(row)[0] for row in problem.unit_allowed], np.int32)
    units = np.arange(problem.num_units)
    devices = np.where(problem.unit_allowed[units, free], free, first).astype(np.int32)
    return episodes, (episodes.seconds(devices), devices)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_moves_never_make_a_label_worse_or_go_where_a_unit_may_not_be(seed):
    problem, rng = constrained_problem(seed), np.random.default_rng(seed)
    if not problem.unit_allowed.any(axis=1).all():
        return
    episodes, label = started(problem, rng)
    before = label[1].copy()
    limit = 1 + seed % problem.num_devices
    label = label[0] * unevenness(episodes, label[1], limit), label[1]
    cost, devices = bettered(episodes, label, limit, 12, rng)
    assert cost <= label[0]
    uneven = unevenness(episodes, devices, limit)
    assert uneven * episodes.seconds(devices) == pytest.approx(cost)
    assert problem.unit_allowed[np.arange(problem.num_units), devices].all()
    assert (label[1] == before).all()


def test_moves_of_clusters_find_what_a_bus_needs():
    shape = {"ops": (40, 60), "devices": (4, 4), "clusters": ("shared",), "microbatches": (1,)}
    problem, rng = random_problem("inception", 3, ccr=4.0, **shape), np.random.default_rng(0)
    episodes, label = started(problem, rng)
    alone = episodes.seconds(np.zeros(problem.num_units, np.int32))
    assert label[0] > 1.5 * alone
    label = label[0] * unevenness(episodes, label[1], 1), label[1]
    assert bettered(episodes, label, 1, 300, rng)[0] < 1.05 * alone


def test_without_moves_a_label_stays():
    episodes, label = started(constrained_problem(7), np.random.default_rng(0))
    assert bettered(episodes, label, 2, 0, np.random.default_rng(0)) is label


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
