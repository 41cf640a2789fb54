from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.kernels import NUM_DYNAMIC
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import (
    AIMS,
    CANDIDATE,
    NUM_CANDIDATE,
    NUM_LEVELS,
    SLACK,
    Clusters,
    build_clusters,
    make_nested_clusters,
)
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import RandomDraws
from gnnplace.train.data.random_families import random_problem as family_problem
from tests.policy.gnn.test_decoder import greedily_seen, random_network
from tests.policy.problems import constrained_problem, permuted_ops
from tests.random_problems import seeds


def found(problem) -> tuple[WalkGraph, Clusters]:
    graph = WalkGraph(SearchSpace(problem))
    return graph, build_clusters(graph)


def together(of: np.ndarray) -> np.ndarray:
    """Whether two units are of one cluster, at each level. [levels, U, U]"""
    return of[:, :, None] == of[:, None, :]


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_levels_are_nested_and_numbered_one_after_the_other(seed):
    problem = constrained_problem(seed)
    of = found(problem)[1].of
    assert of.shape == (NUM_LEVELS, problem.num_units)
    assert sorted(set(of.ravel())) == list(range(of.max() + 1))
    same = together(of)
    assert (same[1:] >= same[:-1]).all()


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_no_cluster_outgrows_its_share_but_one_that_is_a_single_unit(seed):
    problem = family_problem(
        "layered", seed % 1000, RandomDraws(ops=(30, 90), microbatches=(1,))
    )
    graph, clusters = found(problem)
    work = graph.forward.unit_work
    for level, aim in enumerate(
        [*(max(2, aim * problem.num_devices) for aim in AIMS), 2]
    ):
        of = clusters.of[level]
        for one in np.unique(of):
            mine = work[of == one]
            assert len(mine) == 1 or mine.sum() <= SLACK * work.sum() / aim * (1 + 1e-9)


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_work_and_transfers_are_those_of_the_units(seed):
    graph, clusters = found(constrained_problem(seed))
    walk, (offset, other) = (
        graph.forward,
        (graph.forward.flow_offset, graph.forward.flow_unit),
    )
    least = 1e-6 * walk.work / len(walk.unit_work)
    for of in clusters.of:
        for one in np.unique(of):
            units = np.flatnonzero(of == one)
            work = max(walk.unit_work[units].sum(), least)
            outside = sum(
                clusters.flow[k]
                for u in units
                for k in range(offset[u], offset[u + 1])
                if of[other[k]] != one
            )
            np.testing.assert_allclose(clusters.work[one], work, rtol=1e-9)
            np.testing.assert_allclose(
                clusters.outside[one], outside, rtol=1e-9, atol=1e-15
            )


def test_a_new_listing_of_ops_does_not_change_them():
    for seed in range(4):
        problem = family_problem(
            "inception", seed, RandomDraws(ops=(40, 80), microbatches=(1,))
        )
        order = np.random.default_rng(seed).permutation(problem.num_ops)
        moved = permuted_ops(problem, order)
        mine = together(found(problem)[1].of[:, problem.unit_of])
        theirs = together(found(moved)[1].of[:, moved.unit_of])
        assert (mine[:, order][:, :, order] == theirs).all()


def test_two_chains_that_exchange_little_are_two_clusters():
    chain = np.arange(19)
    source = np.concatenate([chain, 20 + chain, [7]])
    target = np.concatenate([chain + 1, 21 + chain, [30]])
    seconds = np.concatenate([np.full(38, 1.0), [0.1]])
    of = make_nested_clusters(source, target, seconds, np.ones(40), [4, 2])
    assert (of[1][:20] == of[1][0]).all()
    assert (of[1][20:] == of[1][20]).all()
    assert of[1][0] != of[1][20]


def test_what_exchanges_nothing_stays_apart():
    nothing = np.zeros(0, np.int64)
    of = make_nested_clusters(nothing, nothing, np.zeros(0), np.ones(5), [2])
    assert len(set(of[0])) == 5


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
                walk.unit_work[v]
                for v, device in decided.items()
                if mine[v] and device == d
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
        decided[int(unit)] = int(seen.device[0, s])


def test_names_are_as_many_as_features():
    assert len(set(CANDIDATE)) == NUM_CANDIDATE == NUM_DYNAMIC + 4 * NUM_LEVELS
