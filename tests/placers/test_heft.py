from __future__ import annotations

import numpy as np
import pytest

from gnnplace.graph import ComputationGraph
from gnnplace.placers.heft import heft_kernel, rank_order
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.simulation import compile_problem
from tests.graph.test_orders import COSTS, EDGES


def published():
    """The ten tasks on three processors of Topcuoglu et al. (2002), figure 2."""
    names = [str(i + 1) for i in range(10)]
    tensors = [(a - 1, float(c), [b - 1]) for (a, b), c in EDGES.items()]
    devices = tuple(Device(name=f"P{i}", kind=f"p{i}", memory=1e9) for i in range(3))
    links = tuple(
        Link(source=a.name, target=b.name, latency=0.0, bandwidth=1.0)
        for a in devices
        for b in devices
        if a != b
    )
    time = {f"p{i}": [row[i] for row in COSTS] for i in range(3)}
    graph = ComputationGraph.from_tensors(names, tensors)
    return build_problem("topcuoglu", graph, Cluster(devices, links), time)


def test_the_published_example_takes_80():
    """The paper's schedule: makespan 80, tasks by rank 1 3 4 2 5 6 9 7 8 10."""
    space = SearchSpace(published())
    # The paper's ranks average transfers over distinct processors: order as published.
    order = np.array([1, 3, 4, 2, 5, 6, 9, 7, 8, 10], dtype=np.int32) - 1
    problem = space.problem
    device, start = heft_kernel(
        space.compiled, order, problem.graph.producer, problem.unit_allowed, False
    )
    finish = start + problem.times[np.arange(10), device]
    assert finish.max() == 80.0
    assert device.tolist() == [2, 0, 2, 1, 2, 1, 2, 0, 1, 1]


def test_the_order_is_topological():
    space = SearchSpace(published())
    order = rank_order(space)
    position = np.argsort(order)
    source, target, _ = space.problem.graph.edges
    assert (position[source] < position[target]).all()


@pytest.mark.parametrize("contention", [False, True])
def test_what_a_message_costs_takes_time_of_both_devices(contention):
    """a (2 s) on d0 sends 8 bytes to b on d1; c on d0 waits for the copy, b for its receipt."""
    devices = tuple(Device(name=f"d{i}", kind=f"k{i}", memory=1e9) for i in range(2))
    costs = {"sender_busy": True, "send_overhead": 0.5, "receive_overhead": 0.25}
    link = Link(source="d0", target="d1", latency=1.0, bandwidth=4.0, **costs)
    graph = ComputationGraph.from_tensors(["a", "b", "c"], [(0, 8.0, [1])])
    time = {"k0": [2.0, np.inf, 1.0], "k1": [np.inf, 3.0, np.inf]}
    problem = build_problem("p", graph, Cluster(devices, (link,)), time)
    order = np.array([0, 1, 2], dtype=np.int32)
    device, start = heft_kernel(
        compile_problem(problem),
        order,
        graph.producer,
        problem.unit_allowed,
        contention,
    )
    assert device.tolist() == [0, 1, 0]
    assert start.tolist() == [0.0, 2.0 + 2.0 + 1.0 + 0.25, 2.0 + 2.0 + 0.5]
