"""Loads of devices: the definition, and what travels together."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.graph import ComputationGraph
from gnnplace.placers import SearchSpace
from gnnplace.placers.throughput.load import (
    interval,
    loads,
    make_flows,
    restrict_to_devices,
    state_excess,
)
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster
from tests.placers.throughput.throughput_problems import (
    plain_interval,
    random_problem,
    uniform_cluster,
    unit_devices,
)


@pytest.mark.parametrize("seed", range(12))
def test_the_interval_is_the_definition(seed: int) -> None:
    """On every placement of a small problem, missing links included."""
    problem = random_problem(seed)
    flows = make_flows(SearchSpace(problem))
    for device in unit_devices(problem):
        expected = plain_interval(problem, device[problem.unit_of])
        assert interval(flows, device) == pytest.approx(expected)


def test_a_tensor_counts_once_for_each_other_device() -> None:
    """Two readers on one device get one copy; a reader elsewhere another one."""
    graph = ComputationGraph.from_tensors(
        ["a", "b", "c", "d"], [(0, 2.0, [1, 2, 3]), (0, 6.0, [1, 2, 3])]
    )
    problem = build_problem(
        "fan", graph, uniform_cluster(3), {"fast": [1.0, 1.0, 1.0, 1.0]}
    )
    flows = make_flows(SearchSpace(problem))
    assert len(flows.producer) == 1  # both tensors go the same way
    # Each copy of the two tensors: 2 * 0.5 s of latency and 8 B at 4 B/s.
    assert loads(flows, np.array([0, 1, 1, 2], dtype=np.int32)).tolist() == [
        7.0,
        5.0,
        4.0,
    ]
    assert loads(flows, np.array([0, 1, 1, 1], dtype=np.int32)).tolist() == [
        4.0,
        6.0,
        0.0,
    ]


def test_overheads_of_a_message_count_as_its_latency_does() -> None:
    """0.25 s of the sender and 0.5 s of the receiver for each of two tensors."""
    graph = ComputationGraph.from_tensors(["a", "b"], [(0, 2.0, [1]), (0, 6.0, [1])])
    plain = uniform_cluster(2)
    links = tuple(
        x.model_copy(update={"send_overhead": 0.25, "receive_overhead": 0.5})
        for x in plain.links
    )
    problem = build_problem(
        "pair", graph, Cluster(plain.devices, links), {"fast": [1.0, 1.0]}
    )
    flows = make_flows(SearchSpace(problem))
    assert loads(flows, np.array([0, 1], dtype=np.int32)).tolist() == [5.5, 5.5]


def test_state_above_memory_is_counted() -> None:
    """Of all devices together."""
    problem = random_problem(3, uniform=True, tight=True)
    flows = make_flows(SearchSpace(problem))
    together = np.zeros(problem.num_units, dtype=np.int32)
    expected = max(0.0, float(problem.state.sum() - problem.cluster.memory[0]))
    assert state_excess(flows, together) == expected


def test_some_of_the_devices_alone() -> None:
    """Renumbered; loads are those of the same placement on all."""
    problem = random_problem(1)
    flows = make_flows(SearchSpace(problem))
    devices = np.array([1, 0], dtype=np.int32)
    part = restrict_to_devices(flows, devices)
    for device in ([0] * problem.num_units, [u % 2 for u in range(problem.num_units)]):
        chosen = np.array(device, dtype=np.int32)
        assert interval(part, chosen) == interval(flows, devices[chosen])
