from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import clusters_of
from gnnplace.policy.gnn.features import STATIC, message_features
from gnnplace.policy.gnn.features import static_features as features_of_ops
from gnnplace.policy.network.features import (
    GLOBAL,
    global_features,
)
from gnnplace.problem import Problem
from gnnplace.train.data.random_families import random_problem as family_problem
from tests.policy.problems import permuted_devices, permuted_ops, trained_like
from tests.random_problems import random_problem, seeds

POLICY = trained_like()


def graph_of(problem: Problem) -> WalkGraph:
    return WalkGraph(SearchSpace(problem))


def static_features(graph: WalkGraph) -> np.ndarray:
    return features_of_ops(graph, clusters_of(graph))


def faster(problem: Problem, factor: float) -> Problem:
    links = tuple(
        link.model_copy(
            update={"latency": link.latency / factor, "bandwidth": link.bandwidth * factor}
        )
        for link in problem.cluster.links
    )
    return replace(
        problem,
        cluster=replace(problem.cluster, links=links),
        time={kind: seconds / factor for kind, seconds in problem.time.items()},
    )


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_all_features_are_finite(seed):
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 25)), int(rng.integers(1, 5))
    problem = random_problem(rng, *shape, complete=False, constrained=True)
    graph = graph_of(problem)
    static, whole = static_features(graph), global_features(graph)
    assert static.shape == (len(graph.ops), len(STATIC))
    assert whole.shape == (len(GLOBAL),)
    assert np.isfinite(static).all()
    assert np.isfinite(whole).all()
    assert np.isfinite(message_features(graph)).all()
    if problem.unit_allowed.any(axis=1).all():
        rollouts = Rollouts(graph.space, POLICY)
        for aim in rollouts.aims:
            seen = rollouts.watch(aim, np.full(problem.num_units, -1, np.int32))
            assert seen.features.shape[2] == len(DYNAMIC)
            assert np.isfinite(seen.features).all()


def test_a_machine_twice_as_fast_looks_the_same():
    problem = family_problem("inception", 2)
    graphs = graph_of(problem), graph_of(faster(problem, 2.0))
    for of in (static_features, global_features, message_features):
        np.testing.assert_allclose(of(graphs[0]), of(graphs[1]), rtol=1e-5, atol=1e-6)
    aim = Aim("upward-rank", 2)
    device = np.arange(problem.num_units, dtype=np.int32) % problem.num_devices
    seen = [Rollouts(graph.space, POLICY).watch(aim, device) for graph in graphs]
    np.testing.assert_allclose(seen[0].features, seen[1].features, rtol=1e-4, atol=1e-5)


def test_features_follow_a_new_listing_of_ops_and_devices():
    problem = family_problem("layered", 4, ops=(40, 60))
    rng = np.random.default_rng(0)
    order = rng.permutation(problem.num_ops)
    plain, moved = graph_of(problem), graph_of(permuted_ops(problem, order))
    if problem.microbatches == 1:
        np.testing.assert_allclose(
            static_features(plain)[order], static_features(moved), rtol=1e-5, atol=1e-6
        )
    turned = graph_of(permuted_devices(problem, rng.permutation(problem.num_devices)))
    np.testing.assert_allclose(
        static_features(plain), static_features(turned), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(global_features(plain), global_features(turned), rtol=1e-5)
