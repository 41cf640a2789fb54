from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem
from gnnplace.train.even_use import unevenness
from gnnplace.train.label_moves import bettered
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
