"""Problems and policies for the tests of this room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gnnplace.graph import ComputationGraph
from gnnplace.policy.network import PlacementPolicy
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from tests.random_problems import random_problem


def trained_like(seed: int = 0) -> PlacementPolicy:
    """A policy whose weights are not its prior."""
    torch.manual_seed(seed)
    policy = PlacementPolicy()
    with torch.no_grad():
        for part in (policy.decoder, policy.refiner):
            part.add_(torch.randn_like(part))
    return policy.eval()


def constrained_problem(seed: int) -> Problem:
    """A small problem of any size with pins, forbids, kinds and memory."""
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    return random_problem(
        rng, *shape, constrained=True, microbatches=int(rng.integers(1, 3))
    )


def permuted_devices(problem: Problem, permutation: np.ndarray) -> Problem:
    """The same problem with its devices listed in another order."""
    cluster = problem.cluster
    devices = tuple(cluster.devices[d] for d in permutation)
    index = {device.name: i for i, device in enumerate(devices)}
    pin = np.array(
        [-1 if d < 0 else index[cluster.devices[d].name] for d in problem.pin], np.int32
    )
    forbid = None if problem.forbid is None else problem.forbid[:, permutation]
    return replace(
        problem, cluster=Cluster(devices, cluster.links), pin=pin, forbid=forbid
    )


def permuted_ops(problem: Problem, permutation: np.ndarray) -> Problem:
    """The same problem with its ops listed in another order."""
    graph = problem.graph
    place = np.argsort(permutation)
    tensors = [
        (
            int(place[graph.producer[k]]),
            float(graph.size[k]),
            place[graph.consumers(k)].tolist(),
        )
        for k in range(graph.num_tensors)
    ]
    return replace(
        problem,
        graph=ComputationGraph.from_tensors(
            [graph.names[i] for i in permutation], tensors
        ),
        time={kind: seconds[permutation] for kind, seconds in problem.time.items()},
        state=problem.state[permutation],
        phase=problem.phase[permutation],
        colocate=tuple(problem.colocate[i] for i in permutation),
        pin=problem.pin[permutation],
        forbid=None if problem.forbid is None else problem.forbid[permutation],
        module=tuple(problem.module[i] for i in permutation),
        members=tuple(problem.members[i] for i in permutation),
        estimated=problem.estimated[permutation],
    )
