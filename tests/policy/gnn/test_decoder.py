from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import list_device_limits
from gnnplace.policy.gnn import kernels
from gnnplace.policy.gnn.decoder import LIMIT, DeviceCount, limit_features
from gnnplace.policy.gnn.network import GnnPolicy
from gnnplace.policy.gnn.rollouts import Drawn, Episodes
from gnnplace.train.data.random_families import RandomDraws
from gnnplace.train.data.random_families import random_problem as family_problem
from tests.policy.problems import constrained_problem
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
ORDERS = (
    "topological",
    "upward-rank",
    "reverse-topological",
    "depth-first-pre",
    "random",
)
CLOSE = 1e-3
torch.set_num_threads(1)


def random_network(seed: int = 0, **given: str) -> GnnPolicy:
    """A small network whose scores are far apart; it uses all devices."""
    torch.manual_seed(seed)
    policy = GnnPolicy(hidden=16, layers=2, decoder_hidden=16, memory=8, **given)
    with torch.no_grad():
        if policy.priority is not None:
            policy.priority.weight.normal_(std=8.0)
        policy.count.last.weight.zero_()
        policy.decoder.last.normal_()
        policy.decoder.bias.normal_()
    return policy.eval()


POLICY = random_network()


def greedily_seen(episodes, network):
    """What a network sees in its greedy decode."""
    greedy = episodes.greedy(network)[None]
    drawn = Drawn(greedy, episodes.orders(network), network.limit)
    return episodes.seen(network, drawn)


def torch_scores(episodes, seen):
    """Scores of all decisions by torch. [B, S, D]"""
    with torch.no_grad():
        states = POLICY.states([episodes.inputs])
        return POLICY.decoder(
            states[torch.from_numpy(seen.step).long()],
            episodes.devices,
            torch.from_numpy(seen.features),
            torch.from_numpy(seen.allowed),
            torch.from_numpy(seen.device).long(),
        ).numpy()


@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_torch_scores_every_decision_of_a_decode_as_numba_decided_it(seed):
    problem = constrained_problem(seed)
    if not problem.unit_allowed.any(axis=1).all():
        return
    episodes = Episodes(SearchSpace(problem), ORDERS[seed % len(ORDERS)])
    network = episodes.network(POLICY)
    seen = greedily_seen(episodes, network)
    scores = torch_scores(episodes, seen)[0]
    finite = np.where(seen.allowed[0], scores, 1e9)
    alike = np.abs(finite[:, :, None] - finite[:, None, :]) < kernels.EQUAL
    values = scores + np.log(alike.sum(axis=2))
    chosen = values[np.arange(len(values)), seen.device[0]]
    assert (chosen >= values.max(axis=1) - CLOSE).all()
    assert sorted(episodes.graph.unit[seen.step[0]]) == list(range(problem.num_units))


def test_numba_scores_equal_torch_scores_with_what_devices_hold():
    problem = random_problem(np.random.default_rng(3), 25, 4)
    episodes = Episodes(SearchSpace(problem), "upward-rank")
    network = episodes.network(POLICY)
    drawn = episodes.samples(network, 2, np.random.default_rng(0))
    seen = episodes.seen(network, drawn)
    scores, share = torch_scores(episodes, seen), 4 / problem.num_units
    for b in range(3):
        memory = np.zeros((4, 8), np.float32)
        for s, (i, d) in enumerate(zip(seen.step[b], seen.device[b], strict=True)):
            room = kernels.Scratch(
                seen.features[b, s],
                seen.allowed[b, s],
                memory,
                np.zeros((10, 16), np.float32),
                np.zeros((4, 16), np.float32),
                np.zeros(4, np.float32),
            )
            kernels.score(network, i, room)
            np.testing.assert_allclose(room.scores, scores[b, s], rtol=1e-3, atol=1e-3)
            memory[d] += share * network.value[i]


def test_what_devices_hold_matters():
    values, chosen = torch.randn(1, 3, 8), torch.tensor([[1, 0, 1]])
    held = POLICY.decoder.memory(values, chosen, 2)[0]
    assert not held[0].any()
    assert torch.allclose(held[1, 1], values[0, 0] * 2 / 3)
    assert torch.allclose(held[2, 0], values[0, 1] * 2 / 3)
    assert torch.allclose(held[2, 1], values[0, 0] * 2 / 3)


def test_devices_that_cannot_be_told_apart_count_together_without_noise():
    room = kernels.Scratch(
        np.zeros((4, 2), np.float32),
        np.array([True, True, True, False]),
        *(np.zeros((1, 1), np.float32) for _ in range(3)),
        np.log(np.array([0.4, 0.3, 0.3, 0.3], np.float32)),
    )
    found = [kernels.log_alike(room, d) for d in range(3)]
    np.testing.assert_allclose(found, np.log([1, 2, 2]), atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_draws_follow_the_softmax(order):
    problem = random_problem(np.random.default_rng(5), 1, 3)
    episodes = Episodes(SearchSpace(problem), order)
    network = episodes.network(POLICY)
    drawn = episodes.samples(network, 4000, np.random.default_rng(1)).unit_device
    seen = episodes.seen(network, Drawn(drawn[:1], episodes.order[None], network.limit))
    wanted = torch.softmax(
        torch.from_numpy(torch_scores(episodes, seen)[0, 0]), 0
    ).numpy()
    shares = np.bincount(drawn[1:, 0], minlength=3) / 4000
    np.testing.assert_allclose(shares, wanted, atol=0.03)
    assert drawn[0, 0] == wanted.argmax()


def heads(count):
    """Random heads, and random states."""
    for seed in range(count):
        torch.manual_seed(seed)
        yield DeviceCount(8, 8), torch.randn(20, 8)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 6, 8])
def test_every_number_is_scored_and_the_best_is_chosen(num_devices):
    limits = list_device_limits(num_devices)
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
    problem = family_problem(
        "nas", 4, RandomDraws(ops=(40, 60), devices=(4, 4), microbatches=(1,))
    )
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
