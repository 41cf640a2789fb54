"""List schedulers: against plain Python and networkx."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.micro.references import against, list_schedule, problem, upward_rank
from gnnplace.graph.orders import upward_rank as ours
from gnnplace.placers import SearchSpace
from gnnplace.placing.roster import make_placer as placer
from gnnplace.simulation import Simulator


@pytest.mark.parametrize("num_ops", [300, 10_000])
def test_upward_rank_against_networkx(benchmark, num_ops):
    made = problem(num_ops)
    cost = made.times[:, 0]
    edge_cost = made.graph.edges[2] / 1e9
    found, expected = against(
        benchmark,
        lambda: ours(made.graph, cost, edge_cost),
        lambda: upward_rank(made.graph, cost, edge_cost),
    )
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("num_ops", [300, 10_000])
def test_an_order_against_python(benchmark, num_ops):
    """Ours counts transfers, theirs does not: it has less to do."""
    made = problem(num_ops)
    simulator = Simulator(made)
    device = np.random.default_rng(1).integers(0, 4, num_ops).astype(np.int32)
    rank = upward_rank(made.graph, made.times[:, 0], made.graph.edges[2] / 1e9)
    found, expected = against(
        benchmark,
        lambda: simulator.complete(device),
        lambda: list_schedule(made, device.tolist(), rank),
    )
    assert sorted(found.tolist()) == sorted(expected) == list(range(num_ops))
    times = [
        simulator.run(device, np.array(o, np.int32)).step_time
        for o in (found, expected)
    ]
    assert 0.5 < times[0] / times[1] < 1.2


@pytest.mark.parametrize(
    "name", ["heft", "heft-contention", "etf", "contiguous", "portfolio"]
)
def test_placers(benchmark, name):
    space = SearchSpace(problem(1_000))
    result = benchmark(placer(name).place, space.problem, space=space)
    assert result.step_time >= result.lower_bound > 0
