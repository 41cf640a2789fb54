"""Simulations a second, one thread. Goals: 20,000 on 300 ops and 5,000 on 1,000 ops, 4 devices."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.micro.references import against, problem, step_time
from gnnplace.simulation import Simulator, lower_bounds

BATCH = 100


@pytest.mark.parametrize("num_ops", [300, 1_000, 10_000])
def test_step_times(benchmark, num_ops):
    simulator = Simulator(problem(num_ops))
    devices = np.random.default_rng(1).integers(0, 4, (BATCH, num_ops)).astype(np.int32)
    order = simulator.problem.graph.topological_order
    times = benchmark(simulator.step_times, devices, order)
    if benchmark.stats:
        benchmark.extra_info["simulations_a_second"] = BATCH / benchmark.stats["median"]
    assert np.isfinite(times).all()


@pytest.mark.parametrize("num_ops", [300, 3_000])
def test_one_step_time_against_python(benchmark, num_ops):
    simulator = Simulator(problem(num_ops))
    device = np.random.default_rng(1).integers(0, 4, num_ops).astype(np.int32)
    order = simulator.problem.graph.topological_order
    found, expected = against(
        benchmark,
        lambda: simulator.run(device, order).step_time,
        lambda: step_time(simulator.problem, device.tolist(), order.tolist()),
    )
    assert found == pytest.approx(expected)


def test_bounds(benchmark):
    assert benchmark(lower_bounds, problem(1_000)).best > 0
