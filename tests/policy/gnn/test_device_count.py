from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import device_limits
from gnnplace.policy.gnn.device_count import LIMIT, DeviceCount, limit_features
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem
from tests.policy.gnn.test_decoder import random_network
from tests.policy.problems import constrained_problem

torch.set_num_threads(1)


def heads(count):
    """Random heads, and random states."""
    for seed in range(count):
        torch.manual_seed(seed)
        yield DeviceCount(8, 8), torch.randn(20, 8)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 6, 8])
def test_every_number_is_scored_and_the_best_is_chosen(num_devices):
    limits = device_limits(num_devices)
    assert limit_features(num_devices).shape == (len(limits), len(LIMIT))
    for head, states in heads(10):
        scores = head(states, num_devices)
        assert len(scores) == len(limits)
        assert head.choice(states, num_devices) == limits[int(scores.argmax())]


def test_of_equal_scores_more_devices_are_chosen():
    head, states = next(heads(1))
    torch.nn.init.zeros_(head.last.weight)
    assert head.choice(states, 4) == 4


def test_numbers_do_not_depend_on_how_ops_are_listed():
    for head, states in heads(5):
        torch.testing.assert_close(head(states, 4), head(states.flip(0), 4))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_walk_uses_no_more_devices_than_that(limit):
    problem = random_problem("nas", 4, ops=(40, 60), devices=(4, 4), microbatches=(1,))
    assert not SearchSpace(problem).memory_matters
    episodes = Episodes(SearchSpace(problem), "upward-rank")
    network = episodes.network(random_network(4))
    drawn = episodes.samples(network, 8, np.random.default_rng(0), 4, limit=limit)
    assert drawn.limit == limit
    for devices in [*drawn.unit_device, episodes.greedy(network, limit)]:
        assert len(np.unique(devices)) <= limit


def test_pins_are_kept_whatever_the_number():
    found = 0
    for seed in range(60):
        problem = constrained_problem(seed)
        if problem.num_devices < 2 or not problem.unit_allowed.any(axis=1).all():
            continue
        episodes = Episodes(SearchSpace(problem), "upward-rank")
        devices = episodes.greedy(episodes.network(random_network(4)), 1)
        assert problem.unit_allowed[np.arange(problem.num_units), devices].all()
        found += len(np.unique(devices)) > 1
    assert found
