"""A learned chooser: message passing whose update is a small network trained on random problems.

Every configuration k of a node u has a predicted excess e(k): by how much the best strategy with it
costs more than the best of all, over the mean least cost of a layer. In each of ``ROUNDS`` rounds,

    m_vu(k) = min_l (e_v(l) + t_uv(k, l)) - min             what a neighbour would rather have
    e_u(k)  = sinh(net(asinh of c_u(k), sum_v m_vu(k), max_v m_vu(k), e_u(k); degree))

with the same network for all configurations and rounds, so that it applies to graphs and numbers
of configurations of any size. Then nodes choose one after the other what costs least beside the
chosen neighbours and the messages of the others. It learns costs, not labels: the targets are the
exact excesses (``tree.py``) of small problems. No proof comes with its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.tree import combined_edges

FloatArray = NDArray[np.float64]
ROUNDS = 10
FEATURES, HIDDEN = 5, 24
WEIGHTS = Path(__file__).parent / "chooser.json"
Graph = list[list[tuple[int, Any]]]


@cache
def shipped_weights() -> Mapping[str, FloatArray]:
    """Those trained by ``benchmarks/sharding_chooser.py``."""
    data = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    return {name: np.array(value) for name, value in data["weights"].items()}


def choose(
    problem: ShardingProblem, weights: Mapping[str, FloatArray] | None = None
) -> tuple[int, ...]:
    """A strategy.

    Args:
        problem: cost tables.
        weights: of the network; the shipped ones by default.
    """
    costs, graph = scaled(problem)
    excess = predictions(costs, graph, weights or shipped_weights(), np)[-1]
    chosen = [-1] * len(costs)
    for node, cost in enumerate(costs):
        total = cost.copy()
        for other, table in graph[node]:
            if chosen[other] >= 0:
                total += table[:, chosen[other]]
            else:
                total += _message(excess[other], table, np)
        chosen[node] = int(total.argmin())
    return tuple(chosen)


def scaled(problem: ShardingProblem) -> tuple[list[FloatArray], Graph]:
    """Costs above each node's least and tables above their least, in mean least costs; and each
    node's neighbours with the table whose first axis is the node's.
    """
    lows = [cost.min() for cost in problem.cost]
    scale = max(float(np.mean(np.abs(lows))), 1e-300)
    costs = [(cost - low) / scale for cost, low in zip(problem.cost, lows, strict=True)]
    graph: Graph = [[] for _ in costs]
    for (u, v), cells in combined_edges(problem).items():
        table = (cells - cells.min()) / scale
        graph[u].append((v, table))
        graph[v].append((u, table.T))
    return costs, graph


def predictions(
    costs: Sequence[Any],
    graph: Graph,
    weights: Mapping[str, Any],
    space: ModuleType,
    rounds: int = ROUNDS,
) -> list[list[Any]]:
    """Predicted excess of every configuration after each round.

    Args:
        costs: of each node, as ``scaled`` makes them.
        graph: likewise.
        weights: of the network.
        space: NumPy, or torch to train: whose arrays the others are.
        rounds: of messages.
    """
    excess, found = list(costs), []
    for _ in range(rounds):
        excess = [
            _update(costs[u], [_message(excess[v], table, space) for v, table in graph[u]],
                    excess[u], weights, space)
            for u in range(len(costs))
        ]  # fmt: skip
        found.append(excess)
    return found


def _message(excess: Any, table: Any, space: ModuleType) -> Any:
    """What a neighbour adds to each configuration of the table's first axis."""
    sent = space.amin(table + excess[None, :], 1)
    return sent - space.amin(sent, 0)


def _update(
    cost: Any, messages: list[Any], before: Any, weights: Mapping[str, Any], space: ModuleType
) -> Any:
    """The new excess of a node's configurations, none below zero."""
    nothing = cost * 0.0
    total = sum(messages, nothing)
    most = space.amax(space.stack([nothing, *messages], 0), 0)
    parts = [space.asinh(part) for part in (cost, total, most, before)]
    features = space.stack([*parts, nothing + len(messages) / 4.0], 1)
    hidden = space.tanh(features @ weights["inner"] + weights["inner_bias"])
    # The network corrects the sum that would be right if the graph were a tree.
    wanted = space.asinh(cost + total) + hidden @ weights["outer"] + weights["outer_bias"]
    found = space.sinh(space.clip(wanted, -8.0, 16.0))
    return found - space.amin(found, 0)
