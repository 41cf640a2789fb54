"""Bounds of every configuration, and a good strategy, without large tables.

Sequential tree-reweighted message passing (TRW-S: Kolmogorov, 2006, "Convergent tree-reweighted
message passing for energy minimization"): nodes in an order; a sweep takes each node's cost plus
all messages to it, gives every later neighbour a share of 1 / max(earlier, later neighbours) of it
and sends on what is least. A sweep forth gives a lower bound of every strategy. In the sweep back
the same sums say how much more any strategy with a given configuration costs at least (the
min-marginals of the chains that TRW-S decomposes the graph into). A sweep's strategy takes each
node's best configuration beside those chosen before and the messages of the others.

Both answers only need messages: memory and time of a sweep are those of the tables themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.flat import Flat, flat_of
from gnnplace.sharding.solver.sweeps import improve, sweep

ROUNDING = 1e-12  # Of the sum of all tables' largest numbers: what rounding may take from a bound.


@dataclass(frozen=True, eq=False)
class Bounds:
    """What message passing has found.

    Attributes:
        configuration: the best strategy met. [N]
        cost: Its cost.
        bound: no strategy costs less.
        node: no strategy with a node's configuration costs less. N arrays [K]
    """

    configuration: tuple[int, ...]
    cost: float
    bound: float
    node: tuple[FloatArray, ...]

    def meets(self, share: float) -> bool:
        """Whether the bound is within that share of the strategy's cost."""
        return self.cost - self.bound <= share * abs(self.cost)

    def sharpened(self, later: Bounds, kept: Sequence[LongArray]) -> Bounds:
        """With bounds found among configurations ``kept``; the others' stay as they are.

        The others are in no strategy better than that of ``self``, so a bound of the kept ones
        above it says no more than its cost.
        """
        whole = tuple(int(rows[k]) for rows, k in zip(kept, later.configuration, strict=True))
        better = min((self.cost, self.configuration), (later.cost, whole))
        return Bounds(better[1], better[0], max(self.bound, min(later.bound, self.cost)), self.node)


def message_bounds(problem: ShardingProblem, sweeps: int, *, enough: float = 0.0) -> Bounds:
    """Bounds and the best strategy of ``sweeps`` sweeps forth and back.

    Args:
        problem: cost tables.
        sweeps: at most; at least one.
        enough: stops where cost and bound are this close, relative to the cost.
    """
    flat = flat_of(problem)
    messages = np.zeros(int(flat.shape.sum()))
    best, least, bound = np.zeros(0, np.int64), np.inf, -np.inf
    node, chosen = np.zeros_like(flat.unary), np.zeros(len(problem.cost), np.int64)
    for _ in range(sweeps):
        bound = max(bound, sweep(flat, messages, node, chosen, True))
        sweep(flat, messages, node, chosen, False)
        improve(flat, chosen)
        cost = problem.value(tuple(chosen.tolist()))
        if cost < least:
            best, least = chosen.copy(), cost
        if least - bound <= enough * abs(least):
            break
    bound -= _rounding(flat)
    of_nodes = [bound + part for part in np.split(node, flat.start[1:-1])]
    return Bounds(tuple(best.tolist()), least, min(bound, least), tuple(of_nodes))


def _rounding(flat: Flat) -> float:
    """What rounding may take from a bound."""
    ends = flat.table + flat.shape.prod(axis=1)
    spans = zip(flat.table.tolist(), ends.tolist(), strict=True)
    largest: dict[int, float] = {}
    total = 0.0
    for begin, end in spans:
        if begin not in largest:
            largest[begin] = _largest(flat.cells[begin:end])
        total += largest[begin]
    nodes = np.split(flat.unary, flat.start[1:-1])
    return ROUNDING * (total + sum(_largest(costs) for costs in nodes))


def _largest(numbers: FloatArray) -> float:
    return float(max(numbers.max(), -numbers.min()))
