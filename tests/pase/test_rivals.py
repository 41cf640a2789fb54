from __future__ import annotations

import pytest

from benchmarks.pase.costs import Machine, Setting, sharding_problem
from benchmarks.pase.markov_chain import random_search
from benchmarks.pase.networks.registry import NETWORKS, build_network
from benchmarks.pase.rivals import expert, greedy
from gnnplace.sharding import best_strategy
from tests.sharding.problems import every_point, random_problem


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {"gpt3_100"}))
@pytest.mark.parametrize("devices", [4, 8])
def test_the_best_is_not_beaten(name, devices):
    setting = Setting(build_network(name), devices, Machine())
    problem = sharding_problem(setting.network, devices)
    best = best_strategy(problem).cost * (1 - 1e-12)
    start = setting.data_parallel()
    found = random_search(problem, start, seed=0, proposals=2000)
    assert best <= problem.value(found) <= problem.value(start)
    assert best <= problem.value(greedy(problem))
    assert (
        best
        <= problem.value(expert(setting, problem))
        <= problem.value(start) * (1 + 1e-12)
    )


def test_experts_split_the_model_and_not_the_convolutions():
    setting = Setting(build_network("alexnet"), 8, Machine())
    words = setting.words(expert(setting, sharding_problem(setting.network, 8)))
    split = dict(
        zip((layer.name for layer in setting.network.layers), words, strict=True)
    )
    assert split["conv3"] == "batch over 8"
    assert "out over" in split["fc6"]


def test_experts_of_a_mixture_of_experts_split_the_experts():
    setting = Setting(build_network("moe"), 8, Machine())
    words = setting.words(expert(setting, sharding_problem(setting.network, 8)))
    split = dict(
        zip((layer.name for layer in setting.network.layers), words, strict=True)
    )
    assert split["block1.mlp.expert1"] == "experts over 8"
    assert split["block0.mlp.mlp1"] == "batch over 8"


def test_greedy_is_not_below_the_best():
    for seed in range(20):
        problem = random_problem(seed, nodes=5, edges=6)
        least = min(cost for cost, _ in every_point(problem))
        assert problem.value(greedy(problem)) >= least - 1e-12
