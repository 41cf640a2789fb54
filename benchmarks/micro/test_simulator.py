"""Simulations a second, one thread. Goals: 20,000 on 300 ops and 5,000 on 1,000 ops, 4 devices."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.cluster import preset
from gnnplace.graph import ComputationGraph
from gnnplace.problem import build_problem
from gnnplace.simulation import Simulator, lower_bounds

BATCH = 100


def problem(num_ops: int):
    """A random DAG: each op feeds one to three of the next forty."""
    rng = np.random.default_rng(0)
    tensors = []
    for i in range(num_ops - 1):
        consumers = np.unique(rng.integers(i + 1, min(num_ops, i + 40), rng.integers(1, 4)))
        tensors.append((i, float(rng.integers(1, 10**6)), consumers.tolist()))
    graph = ComputationGraph.from_tensors([f"o{i}" for i in range(num_ops)], tensors)
    cost = rng.uniform(1e-5, 1e-3, num_ops)
    return build_problem("random", graph, preset("pcie-a100-4"), {"a100": cost})


@pytest.mark.parametrize("num_ops", [300, 1_000, 10_000])
def test_step_times(benchmark, num_ops):
    simulator = Simulator(problem(num_ops))
    devices = np.random.default_rng(1).integers(0, 4, (BATCH, num_ops)).astype(np.int32)
    order = simulator.problem.graph.topological_order
    times = benchmark(simulator.step_times, devices, order)
    benchmark.extra_info["simulations_a_second"] = _rate(benchmark)
    assert np.isfinite(times).all()


def _rate(benchmark) -> float | None:
    return BATCH / benchmark.stats["median"] if benchmark.stats else None


@pytest.mark.parametrize("num_ops", [300, 10_000])
def test_list_scheduling(benchmark, num_ops):
    simulator = Simulator(problem(num_ops))
    device = np.random.default_rng(1).integers(0, 4, num_ops).astype(np.int32)
    order = benchmark(simulator.complete, device)
    assert len(order) == num_ops


def test_bounds(benchmark):
    assert benchmark(lower_bounds, problem(1_000)).best > 0
