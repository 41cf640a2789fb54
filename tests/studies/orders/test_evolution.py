from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.orders import evolution
from benchmarks.studies.orders.decoding import OneOrder, start_weights
from benchmarks.studies.orders.evolution import fitness, train_order
from gnnplace.placers import SearchSpace
from gnnplace.policy.learned import load_policy
from gnnplace.train.data.random_families import RandomDraws, random_problem

POLICY = load_policy()


def test_fitness_is_of_the_median_and_no_problem_decides_alone():
    logs = np.array([[0.0, 5.0], [0.1, 0.0], [0.2, 0.0]])
    assert fitness(logs) == pytest.approx([(-0.1 + evolution.MOST) / 2, 0.0, 0.05])


@pytest.fixture(scope="module")
def problems():
    drawn = [
        random_problem(
            "layered",
            seed,
            RandomDraws(ops=(40, 60), devices=(3, 4), microbatches=(1,)),
        )
        for seed in range(10)
    ]
    return [OneOrder(SearchSpace(problem), POLICY) for problem in drawn]


def test_training_mends_bad_weights_and_is_the_same_again(problems, monkeypatch):
    monkeypatch.setattr(evolution, "EVERY", 5)
    bad = start_weights("upward-rank", POLICY)
    bad[0] = 4.0  # the latest finish first
    found = [train_order(problems, "upward-rank", bad, 10, seed=1) for _ in range(2)]
    assert found[0].curve[0] == 0.0
    assert len(found[0].curve) == 3
    assert min(found[0].curve) < -0.05
    assert np.array_equal(found[0].weights, found[1].weights)
    assert found[0].decodes == 10 * evolution.POPULATION * 6 + 3 * 4


def test_what_is_returned_is_never_worse_than_the_start_where_it_is_scored(
    problems, monkeypatch
):
    monkeypatch.setattr(evolution, "STEP_SIZE", 5.0)
    start = start_weights("upward-rank", POLICY)
    found = train_order(problems, "upward-rank", start, 3, seed=0)
    # No mean is scored within three generations.
    assert np.array_equal(found.weights, start)
