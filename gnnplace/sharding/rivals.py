"""Strategies to compare with, in the same tables: experts', greedy, random search.

* ``expert``: the model's own dimension (heads, hidden features, vocabulary, or the outputs of fully
  connected layers) over t devices and the batch over the rest, the best t: Megatron-LM (Shoeybi et
  al., 2019, arXiv 1909.08053) for transformers; convolutions always along the batch, as in "One
  weird trick" (Krizhevsky, 2014, arXiv 1404.5997).
* ``greedy``: layer by layer, the configuration that is cheapest with those chosen before.
* ``random_search``: the Markov chain of FlexFlow (Jia et al., 2018, arXiv 1807.05358): a random
  configuration of a random layer, accepted if better, else with probability exp(-beta * increase).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gnnplace.sharding.configurations import configurations
from gnnplace.sharding.layers import Operation
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.strategy import Setting

MODEL_DIMENSIONS = ("heads", "hidden", "vocabulary", "out")
TEMPERATURE = 2e-3  # Of the start's cost: an increase by this much is accepted in one of e cases.


def expert(setting: Setting, problem: ShardingProblem) -> tuple[int, ...]:
    """The best of the experts' strategies over all sizes of the model's share."""
    ways = [t for t in range(1, setting.devices + 1) if setting.devices % t == 0]
    strategies = [
        tuple(_expert_split(x.operation, setting, t) for x in setting.network.layers) for t in ways
    ]
    return min(strategies, key=problem.value)


def _expert_split(operation: Operation, setting: Setting, ways: int) -> int:
    """Index of the configuration nearest to the batch over devices / ways, the model over ways."""
    rows = configurations(operation, setting.devices, setting.exactly)
    names = [d.name for d in operation.dimensions]
    mine = next((name for name in MODEL_DIMENSIONS if name in names), None)
    if operation.kind in ("convolution", "lstm"):
        mine, ways = None, 1
    alone = operation.kind in ("pool", "add", "concat") and ways == setting.devices
    wanted = np.ones(len(names))
    wanted[names.index("batch")] = setting.devices if alone else setting.devices // ways
    if mine is not None:
        wanted[names.index(mine)] = ways
    return int(np.abs(np.log(rows / wanted)).sum(axis=1).argmin())


def greedy(problem: ShardingProblem) -> tuple[int, ...]:
    """Layer by layer in the problem's order."""
    edges = _edges_of(problem)
    chosen = np.full(len(problem.names), -1)
    for node in range(len(chosen)):
        chosen[node] = int(_conditional(problem, edges, chosen, node).argmin())
    return tuple(int(k) for k in chosen)


def random_search(
    problem: ShardingProblem, start: Sequence[int], *, seed: int, proposals: int
) -> tuple[int, ...]:
    """The best strategy that the chain meets.

    Args:
        problem: cost tables.
        start: where it begins; FlexFlow takes data parallelism.
        seed: of the proposals.
        proposals: to make.
    """
    rng = np.random.default_rng(seed)
    edges, current = _edges_of(problem), np.array(start)
    cost = least = problem.value(tuple(start))
    beta, best = 1.0 / (TEMPERATURE * max(cost, 1e-300)), current.copy()
    nodes = rng.integers(len(current), size=proposals)
    for node, position, chance in zip(nodes, rng.random(proposals), rng.random(proposals),
                                      strict=True):  # fmt: skip
        k = int(position * len(problem.cost[node]))
        table = _conditional(problem, edges, current, int(node))
        increase = float(table[k] - table[current[node]])
        if increase <= 0 or chance < math.exp(-beta * increase):
            current[node], cost = k, cost + increase
            if cost < least:
                best, least = current.copy(), cost
    return tuple(int(k) for k in best)


Incident = list[tuple[int, NDArray[np.float64]]]


def _edges_of(problem: ShardingProblem) -> list[Incident]:
    """Each node's neighbours, and the table with the neighbour's configuration first."""
    found: list[Incident] = [[] for _ in problem.names]
    for edge in problem.edges:
        found[edge.u].append((edge.v, edge.cost.T))
        found[edge.v].append((edge.u, edge.cost))
    return found


def _conditional(
    problem: ShardingProblem, edges: list[Incident], chosen: NDArray[np.int64], node: int
) -> NDArray[np.float64]:
    """Cost of each of a node's configurations beside its chosen neighbours (-1: not yet)."""
    total = problem.cost[node].copy()
    for other, table in edges[node]:
        if chosen[other] >= 0:
            total += table[chosen[other]]
    return total
