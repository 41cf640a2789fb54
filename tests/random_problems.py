"""Random problems for property tests: every feature of the format, small numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from gnnplace.graph import ComputationGraph
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.microbatching import with_microbatches

CHANNELS = ("x", "y", ("x", "y"), ("z", "y"), ("z", "x", "w"))


def random_graph(rng: np.random.Generator, num_ops: int) -> ComputationGraph:
    """A random DAG: ops in random listing order, up to two tensors an op, some unused."""
    listing = rng.permutation(num_ops)
    tensors = []
    for i in range(num_ops):
        for _ in range(rng.integers(0, 3)):
            later = np.arange(i + 1, num_ops)
            count = min(len(later), int(rng.integers(0, 4)))
            consumers = rng.choice(later, count, replace=False) if count else []
            size = float(rng.choice([0, 1, 3, 8, 100]))
            tensors.append(
                (int(listing[i]), size, [int(listing[c]) for c in consumers])
            )
    order = rng.permutation(len(tensors))
    names = [f"op{i}" for i in range(num_ops)]
    return ComputationGraph.from_tensors(names, [tensors[k] for k in order])


def random_cluster(
    rng: np.random.Generator,
    num_devices: int,
    *,
    complete: bool = True,
    plain: bool = False,
) -> Cluster:
    """Devices of up to two kinds; links that share or hold several channels, overheads, busy
    senders.
    """
    devices = tuple(
        Device(name=f"d{i}", kind=str(rng.choice(["fast", "slow"])), memory=1e9)
        for i in range(num_devices)
    )
    links = []
    for a in devices:
        for b in devices:
            if a.name == b.name or (not complete and rng.random() < 0.2):
                continue
            costs = {
                "sender_busy": bool(rng.random() < 0.3),
                "send_overhead": float(rng.choice([0.0, 0.0, 1.0])),
                "receive_overhead": float(rng.choice([0.0, 0.0, 1.0])),
                "channel": CHANNELS[rng.integers(len(CHANNELS))]
                if rng.random() < 0.6
                else None,
            }
            links.append(
                Link(
                    source=a.name,
                    target=b.name,
                    latency=float(rng.choice([0.0, 0.5, 2.0])),
                    bandwidth=float(rng.choice([0.5, 1.0, 4.0])),
                    **({} if plain else costs),
                )
            )
    return Cluster(devices, tuple(links))


def random_problem(
    rng: np.random.Generator,
    num_ops: int,
    num_devices: int,
    *,
    complete: bool = True,
    plain: bool = False,
    constrained: bool = False,
    microbatches: int = 1,
) -> Problem:
    """A random problem; whole numbers of seconds, so that events often coincide."""
    graph = random_graph(rng, num_ops)
    cluster = random_cluster(rng, num_devices, complete=complete, plain=plain)
    slow = rng.integers(0, 6, num_ops).astype(float)
    fast = np.floor(slow / 2)
    given: dict[str, Any] = {"state": rng.integers(0, 50, num_ops).astype(float)}
    if constrained:
        given["colocate"] = tuple(
            f"c{k}" if k < 3 else None for k in rng.integers(0, 8, num_ops).tolist()
        )
        pinned = rng.random(num_ops) < 0.05
        free = np.array([label is None for label in given["colocate"]])
        given["pin"] = np.where(
            pinned & free, rng.integers(0, num_devices, num_ops), -1
        ).astype(np.int32)
        forbid = (rng.random((num_ops, num_devices)) < 0.05) & free[:, None]
        forbid &= (given["pin"] < 0)[:, None]
        forbid[forbid.all(axis=1)] = False
        given["forbid"] = forbid if forbid.any() else None
    if microbatches > 1:
        given["phase"] = np.where(np.diff(graph.successor_offset) == 0, 2, 0).astype(
            np.int8
        )
    time = {"fast": fast, "slow": slow}
    given["error"] = {"fast": np.full(num_ops, 0.1)}
    given["source"] = {"slow": ("table",) * num_ops}
    problem = build_problem("random", graph, cluster, time, **given)
    return with_microbatches(problem, microbatches)


def random_order(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """A random topological order of all ops."""
    graph = problem.graph
    waiting = np.diff(graph.predecessor_offset).copy()
    ready = [i for i in range(problem.num_ops) if waiting[i] == 0]
    order = []
    while ready:
        op = ready.pop(int(rng.integers(len(ready))))
        order.append(op)
        for other in graph.successors(op):
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(int(other))
    return np.array(order, dtype=np.int32)


seeds = st.integers(min_value=0, max_value=2**32 - 1)
