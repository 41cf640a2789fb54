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


def paid(
    problem: Problem, k: int, device: list[int], d: int, free: list[float]
) -> float:
    """Seconds that tensor ``k`` takes of receiver ``d``; the sender's are added to ``free``."""
    cluster, source = problem.cluster, device[int(problem.graph.producer[k])]
    if source == d or not cluster.linked[source, d]:
        return 0.0
    free[source] += cluster.send_overhead[source, d]
    if cluster.sender_busy[source, d]:
        free[source] += problem.graph.size[k] / cluster.bandwidth[source, d]
    return float(cluster.receive_overhead[source, d])


def by_hand(problem: Problem) -> tuple[list[int], list[float]]:
    """Every ready op on every device, the earliest start each time; ties by rank, then device."""
    place = np.argsort(rank_order(SearchSpace(problem))).tolist()
    graph, cluster, n = problem.graph, problem.cluster, problem.num_ops
    device, start, finish = [-1] * n, [0.0] * n, [0.0] * n
    free, home, sent = [0.0] * problem.num_devices, {}, set()
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
                    if device[p] != d and not cluster.linked[device[p], d]:
                        there = 1e12
                    elif device[p] != d:
                        there += cluster.latency[device[p], d]
                        there += cluster.receive_overhead[device[p], d]
                        there += graph.size[k] / cluster.bandwidth[device[p], d]
                    at = max(at, there)
                options.append((at, place[op], d, op, unit))
        at, _, d, op, unit = min(options)
        device[op], home[unit] = d, d
        inputs = [k for k in range(graph.num_tensors) if op in graph.consumers(k)]
        extra = sum(
            paid(problem, k, device, d, free) for k in inputs if (k, d) not in sent
        )
        sent |= {(k, d) for k in inputs}
        at = start[op] = max(at, free[d] + extra)
        finish[op] = free[d] = at + problem.times[op, d]
    return device, start


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4))
def test_takes_the_earliest_start_of_all(seed, num_devices):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 15))
    problem = random_problem(rng, n, num_devices, complete=bool(rng.random() < 0.8))
    problem = replace(
        problem, time={kind: rng.uniform(0.1, 3.0, n) for kind in problem.time}
    )
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
    problem = replace(
        problem, time={kind: rng.uniform(0.1, 3.0, 12) for kind in problem.time}
    )
    if not problem.unit_allowed.any(axis=1).all():
        return
    space = SearchSpace(problem)
    device, start = etf_kernel(space.compiled, rank_order(space), problem.unit_allowed)
    expected = by_hand(problem)
    assert device.tolist() == expected[0]
    np.testing.assert_allclose(start, expected[1])
