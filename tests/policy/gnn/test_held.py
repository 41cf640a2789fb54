from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.kernels import NUM_DYNAMIC
from gnnplace.policy.gnn.clusters import NUM_LEVELS
from gnnplace.policy.gnn.held import CANDIDATE, NUM_CANDIDATE
from gnnplace.policy.gnn.rollouts import Episodes
from tests.policy.gnn.test_decoder import greedily_seen, random_network
from tests.policy.problems import constrained_problem
from tests.random_problems import seeds

POLICY = random_network()


def by_definition(episodes, unit, decided, num_devices):
    """The features of a unit's candidates as ``held`` words them. [D, 4 NUM_LEVELS]"""
    walk, clusters = episodes.graph.forward, episodes.clusters
    out = np.zeros((num_devices, 4 * NUM_LEVELS))
    for level, of in enumerate(clusters.of):
        mine = of == of[unit]
        work, outside = clusters.work[of[unit]], clusters.outside[of[unit]]
        near = np.zeros(num_devices)
        for v, device in decided.items():
            for k in range(walk.flow_offset[v], walk.flow_offset[v + 1]):
                if not mine[v] and mine[walk.flow_unit[k]]:
                    near[device] += clusters.flow[k]
        for d in range(num_devices):
            there = sum(
                walk.unit_work[v] for v, device in decided.items() if mine[v] and device == d
            )
            every = sum(walk.unit_work[v] for v in decided if mine[v])
            out[d, 4 * level : 4 * level + 4] = (
                there / work,
                every / work,
                near[d] / max(outside, 1e-30),
                np.log1p((near.sum() - near[d]) / work),
            )
    return out


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_features_of_clusters_are_what_their_names_say(seed):
    problem = constrained_problem(seed)
    if not problem.unit_allowed.any(axis=1).all():
        return
    order = ("upward-rank", "reverse-topological")[seed % 2]
    episodes = Episodes(SearchSpace(problem), order)
    network = episodes.network(POLICY)
    seen = greedily_seen(episodes, network)
    decided: dict[int, int] = {}
    for s, unit in enumerate(episodes.graph.unit[seen.step[0]]):
        wanted = by_definition(episodes, unit, decided, problem.num_devices)
        wanted[~seen.allowed[0, s]] = 0.0
        found = seen.features[0, s, :, NUM_DYNAMIC:]
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
        decided[int(unit)] = int(seen.chosen[0, s])


def test_names_are_as_many_as_features():
    assert len(set(CANDIDATE)) == NUM_CANDIDATE == NUM_DYNAMIC + 4 * NUM_LEVELS
