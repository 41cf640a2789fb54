from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.orders.decoding import (
    LEARNED,
    PRIORITIES,
    STUDIED,
    OneOrder,
    place_in,
    start_weights,
)
from gnnplace.placers import SearchSpace
from gnnplace.policy.learned import load_policy
from gnnplace.train.data.random_families import RandomDraws, random_problem

POLICY = load_policy()


@pytest.fixture(scope="module")
def one():
    problem = random_problem(
        "layered", 5, RandomDraws(ops=(60, 60), devices=(4, 4), microbatches=(1,))
    )
    return OneOrder(SearchSpace(problem), POLICY)


@pytest.mark.parametrize("order", STUDIED)
def test_more_numbers_of_devices_are_no_worse(one, order):
    weights = start_weights(order, POLICY)
    single = one.space.score(
        np.zeros(one.space.problem.num_ops, np.int32), one.space.turn_order
    )
    assert one.best_size(order, weights) <= one.one(order, weights)
    assert one.best_size(order, weights) <= single * (1 + 1e-9)


def test_a_learned_order_starts_as_upward_rank(one):
    weights = start_weights(LEARNED, POLICY)
    assert one.one(LEARNED, weights) == one.one(
        "upward-rank", start_weights("upward-rank", POLICY)
    )


def test_a_learned_order_follows_its_priorities_and_the_edges(one):
    rng, graph = np.random.default_rng(0), one.following.graph.graph
    source, target, _ = graph.edges
    for _ in range(5):
        one.following.follow(rng.normal(size=len(PRIORITIES)).astype(np.float32))
        place = place_in(one.following.order("topological"))
        assert sorted(place) == list(range(graph.num_ops))
        assert (place[source] < place[target]).all()
    # Earliness in topological order alone gives that order back.
    one.following.follow(np.eye(len(PRIORITIES), dtype=np.float32)[2])
    assert np.array_equal(one.following.order("topological"), graph.topological_order)


def test_weights_change_decodes_and_are_not_kept(one):
    weights = start_weights("upward-rank", POLICY)
    before = one.one("upward-rank", weights)
    one.one("upward-rank", -weights)
    assert one.one("upward-rank", -weights) != before
    assert one.one("upward-rank", weights) == before


def test_priorities_are_standardised(one):
    table = one.following.priorities
    assert np.allclose(table.mean(axis=0), 0.0, atol=1e-9)
    spread = table.std(axis=0)
    assert ((abs(spread - 1) < 1e-6) | (spread == 0)).all()
