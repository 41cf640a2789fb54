from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings

from gnnplace.placers import SearchSpace, contract
from gnnplace.policy.gnn.rollouts import (
    OWN,
    SHARED,
    Episodes,
    draw_shared_noise,
    gumbel_noise,
)
from tests.policy.gnn.test_decoder import greedily_seen, random_network
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = random_network(1)
CLUSTERS = np.array([[0, 0, 1, 1, 2, 2], [3, 3, 3, 3, 4, 4]])


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_every_draw_puts_units_where_kinds_and_pins_allow(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 25)), 3, constrained=True)
    if not problem.unit_allowed.any(axis=1).all():
        return
    episodes = Episodes(SearchSpace(problem), "topological")
    for drawn in episodes.samples(episodes.network(POLICY), 4, rng).unit_device:
        assert problem.unit_allowed[np.arange(problem.num_units), drawn].all()


def test_state_never_exceeds_the_memory_while_there_is_room():
    problem = contract.training_chain(memory=48.0)
    episodes = Episodes(SearchSpace(problem), "topological")
    draws = episodes.samples(
        episodes.network(POLICY), 20, np.random.default_rng(0), shared=10
    )
    for drawn in draws.unit_device:
        state = np.bincount(drawn, problem.unit_state, problem.num_devices)
        assert (state <= problem.cluster.memory).all()


def test_each_unit_is_decided_once_when_its_first_op_comes():
    problem = contract.training_chain()
    episodes = Episodes(SearchSpace(problem), "topological")
    network = episodes.network(POLICY)
    seen = greedily_seen(episodes, network)
    first = [
        int(np.flatnonzero(episodes.graph.unit[episodes.order] == u)[0])
        for u in range(3)
    ]
    steps = [int(np.flatnonzero(episodes.order == i)[0]) for i in seen.step[0]]
    assert problem.num_units < problem.num_ops
    assert steps == sorted(steps)
    assert set(first) <= set(steps)


def test_cold_draws_are_nearer_to_the_greedy_decode():
    problem = random_problem(np.random.default_rng(2), 40, 3)
    episodes = Episodes(SearchSpace(problem), "upward-rank")
    network = episodes.network(POLICY)

    def differing(temperature):
        rng = np.random.default_rng(5)
        drawn = episodes.samples(network, 40, rng, temperature=temperature).unit_device
        return (drawn[1:] != drawn[0]).mean()

    assert differing(0.02) < differing(0.4) < differing(1.0)


def test_the_same_seed_draws_the_same():
    problem = random_problem(np.random.default_rng(2), 20, 3)
    episodes = Episodes(SearchSpace(problem), "upward-rank")
    network = episodes.network(POLICY)
    draws = [
        episodes.samples(network, 3, np.random.default_rng(5), 2)[0] for _ in range(2)
    ]
    assert (draws[0] == draws[1]).all()
    assert (draws[0][0] == episodes.greedy(network)).all()


def test_units_of_a_cluster_share_most_of_their_noise():
    found = draw_shared_noise(np.random.default_rng(0), 4000, CLUSTERS, 3)
    assert found.shape == (4000, 6, 3)

    def alike(one, other):
        return np.corrcoef(found[:, one, 0], found[:, other, 0])[0, 1]

    assert alike(0, 1) > 0.95  # of one cluster at both levels
    assert 0.3 < alike(0, 2) < 0.7  # at one of the two
    assert abs(alike(0, 5)) < 0.1  # at none


def test_within_a_cluster_units_differ_by_their_own_noise():
    found = draw_shared_noise(np.random.default_rng(1), 4000, CLUSTERS, 3)
    gumbel = np.pi / np.sqrt(6.0)  # standard deviation
    assert (
        abs((found[:, 0] - found[:, 1]).std() / (np.sqrt(2.0) * OWN * gumbel) - 1.0)
        < 0.05
    )
    assert SHARED[0] * gumbel < found.std() < SHARED[1] * gumbel


def test_noise_of_its_own_is_gumbel_noise():
    found = gumbel_noise(np.random.default_rng(2), 500, 20, 3)
    assert abs(found.mean() - np.euler_gamma) < 0.02
    assert abs(np.corrcoef(found[:, 0, 0], found[:, 1, 0])[0, 1]) < 0.15


def test_no_draws_are_no_noise():
    assert draw_shared_noise(np.random.default_rng(0), 0, CLUSTERS, 3).shape == (
        0,
        6,
        3,
    )
