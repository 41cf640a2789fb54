from __future__ import annotations

import numpy as np

from gnnplace.policy.gnn.noise import OWN, SHARED, gumbel_noise, shared_noise

CLUSTERS = np.array([[0, 0, 1, 1, 2, 2], [3, 3, 3, 3, 4, 4]])


def test_units_of_a_cluster_share_most_of_their_noise():
    found = shared_noise(np.random.default_rng(0), 4000, CLUSTERS, 3)
    assert found.shape == (4000, 6, 3)

    def alike(one, other):
        return np.corrcoef(found[:, one, 0], found[:, other, 0])[0, 1]

    assert alike(0, 1) > 0.95  # of one cluster at both levels
    assert 0.3 < alike(0, 2) < 0.7  # at one of the two
    assert abs(alike(0, 5)) < 0.1  # at none


def test_within_a_cluster_units_differ_by_their_own_noise():
    found = shared_noise(np.random.default_rng(1), 4000, CLUSTERS, 3)
    gumbel = np.pi / np.sqrt(6.0)  # standard deviation
    assert abs((found[:, 0] - found[:, 1]).std() / (np.sqrt(2.0) * OWN * gumbel) - 1.0) < 0.05
    assert SHARED[0] * gumbel < found.std() < SHARED[1] * gumbel


def test_noise_of_its_own_is_gumbel_noise():
    found = gumbel_noise(np.random.default_rng(2), 500, 20, 3)
    assert abs(found.mean() - np.euler_gamma) < 0.02
    assert abs(np.corrcoef(found[:, 0, 0], found[:, 1, 0])[0, 1]) < 0.15


def test_no_draws_are_no_noise():
    assert shared_noise(np.random.default_rng(0), 0, CLUSTERS, 3).shape == (0, 6, 3)
