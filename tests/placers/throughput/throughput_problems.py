"""Small problems and a plain definition of the interval, for the tests of throughput."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from gnnplace.graph import ComputationGraph
from gnnplace.placers import SearchSpace
from gnnplace.placers.throughput.load import interval, make_flows
from gnnplace.placers.throughput.split import precedence
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from tests.random_problems import random_cluster, random_graph

IntArray = NDArray[np.int32]


def uniform_cluster(
    count: int, memory: float = 1e9, kinds: tuple[str, ...] = ("fast",)
) -> Cluster:
    """Devices whose links are all alike: 0.5 s and 4 B/s."""
    devices = tuple(
        Device(name=f"d{i}", kind=kinds[i % len(kinds)], memory=memory)
        for i in range(count)
    )
    pairs = [(a.name, b.name) for a in devices for b in devices if a != b]
    return Cluster(
        devices,
        tuple(Link(source=a, target=b, latency=0.5, bandwidth=4.0) for a, b in pairs),
    )


def chain(
    times: list[float], size: float, cluster: Cluster, **given: object
) -> Problem:
    """Ops in a row, ``size`` bytes between neighbours."""
    last = len(times) - 1
    tensors = [(i, size, [i + 1] if i < last else []) for i in range(len(times))]
    graph = ComputationGraph.from_tensors(
        [f"op{i}" for i in range(len(times))], tensors
    )
    cost = {kind: np.array(times) for kind in cluster.kinds}
    return build_problem("chain", graph, cluster, cost, **given)


def random_problem(seed: int, *, uniform: bool = False, tight: bool = False) -> Problem:
    """Up to seven ops, four devices, colocation; links of all kinds unless ``uniform``."""
    rng = np.random.default_rng(seed)
    num_ops, num_devices = (
        int(rng.integers(3, 8)),
        int(rng.integers(2, 5 if uniform else 4)),
    )
    if uniform:
        kinds = ("fast", "slow") if rng.random() < 0.4 else ("fast",)
        memory = float(rng.integers(8, 30)) if tight else 1e9
        cluster = uniform_cluster(num_devices, memory, kinds)
    else:
        cluster = random_cluster(rng, num_devices, complete=rng.random() < 0.7)
    return build_problem(
        f"random-{seed}",
        random_graph(rng, num_ops),
        cluster,
        {kind: rng.integers(1, 9, num_ops).astype(float) for kind in ("fast", "slow")},
        colocate=tuple(
            str(rng.integers(3)) if rng.random() < 0.2 else None for _ in range(num_ops)
        ),
        state=rng.integers(1, 6, num_ops).astype(float),
    )


def plain_interval(problem: Problem, device: IntArray) -> float:
    """The definition, op by op and tensor by tensor."""
    load = np.zeros(problem.num_devices)
    graph, cluster = problem.graph, problem.cluster
    for op, d in enumerate(device):
        load[d] += problem.times[op, d]
    for k in range(graph.num_tensors):
        source = int(device[graph.producer[k]])
        for target in {int(device[c]) for c in graph.consumers(k)} - {source}:
            if not cluster.linked[source, target]:
                return np.inf
            rate = cluster.bandwidth[source, target]
            cost = cluster.latency[source, target] + graph.size[k] / rate
            cost += cluster.send_overhead[source, target]
            cost += cluster.receive_overhead[source, target]
            load[source] += cost
            load[target] += cost
    return float(load.max())


def unit_devices(problem: Problem) -> Iterator[IntArray]:
    """Devices of units, all of them that the state of units allows."""
    for devices in product(range(problem.num_devices), repeat=problem.num_units):
        chosen = np.array(devices, dtype=np.int32)
        resident = np.bincount(chosen, problem.unit_state, problem.num_devices)
        if (resident <= problem.cluster.memory).all():
            yield chosen


def brute_force(problem: Problem) -> tuple[float, float]:
    """The least interval of all placements, and of all contiguous splits.

    By the kernel, which ``test_load`` holds against ``plain_interval``: there may be 16,000.
    """
    space = SearchSpace(problem)
    relations, flows = list(precedence(space).edges), make_flows(space)
    best = contiguous = np.inf
    for chosen in unit_devices(problem):
        value = interval(flows, chosen)
        best = min(best, value)
        if value < contiguous:
            stages = nx.DiGraph((int(chosen[a]), int(chosen[b])) for a, b in relations)
            stages.remove_edges_from(list(nx.selfloop_edges(stages)))
            if nx.is_directed_acyclic_graph(stages):
                contiguous = value
    return float(best), float(contiguous)
