from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.placers import SearchSpace
from gnnplace.placers.etf import etf_kernel
from gnnplace.placers.heft import rank_order
from gnnplace.problem import Problem
from tests.random_problems import random_problem, seeds


def by_hand(problem: Problem) -> tuple[list[int], list[float]]:
    """Every ready op on every device, the earliest start each time; ties by rank, then device."""
    place = np.argsort(rank_order(SearchSpace(problem))).tolist()
    graph, cluster, n = problem.graph, problem.cluster, problem.num_ops
    device, start, finish = [-1] * n, [0.0] * n, [0.0] * n
    free, home = [0.0] * problem.num_devices, {}
    for _ in range(n):
        options = []
        for op in range(n):
            inputs = [k for k in range(graph.num_tensors) if op in graph.consumers(k)]
            made = [int(graph.producer[k]) for k in inputs]
            if device[op] >= 0 or any(device[p] < 0 for p in made):
                continue
            unit = int(problem.unit_of[op])
            for d in range(problem.num_devices):
                if not problem.unit_allowed[unit, d] or home.get(unit, d) != d:
                    continue
                at = free[d]
                for k, p in zip(inputs, made, strict=True):
                    there = finish[p]
                    if device[p] != d and cluster.channel[device[p], d] < 0:
                        there = 1e12
                    elif device[p] != d:
                        there += cluster.latency[device[p], d]
                        there += graph.size[k] / cluster.bandwidth[device[p], d]
                    at = max(at, there)
                options.append((at, place[op], d, op, unit))
        at, _, d, op, unit = min(options)
        device[op], home[unit], start[op] = d, d, at
        finish[op] = free[d] = at + problem.times[op, d]
    return device, start


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4))
def test_takes_the_earliest_start_of_all(seed, num_devices):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 15))
    problem = random_problem(rng, n, num_devices, complete=bool(rng.random() < 0.8))
    problem = replace(problem, time={kind: rng.uniform(0.1, 3.0, n) for kind in problem.time})
    space = SearchSpace(problem)
    device, start = etf_kernel(space.compiled, rank_order(space), problem.unit_allowed)
    expected = by_hand(problem)
    assert device.tolist() == expected[0]
    np.testing.assert_allclose(start, expected[1])


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_classes_and_pins_hold(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 12, 3, constrained=True)
    problem = replace(problem, time={kind: rng.uniform(0.1, 3.0, 12) for kind in problem.time})
    if not problem.unit_allowed.any(axis=1).all():
        return
    space = SearchSpace(problem)
    device, start = etf_kernel(space.compiled, rank_order(space), problem.unit_allowed)
    expected = by_hand(problem)
    assert device.tolist() == expected[0]
    np.testing.assert_allclose(start, expected[1])
