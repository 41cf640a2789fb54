"""The best strategy: bounds discard most configurations, elimination proves the best of the rest.

Small problems are eliminated directly. In larger ones a few sweeps of message passing
(``message_passing.py``) give a strategy and, for every configuration, a lower bound on all
strategies with it. Configurations whose bound exceeds the strategy's cost cannot be in the best
one. The rest is small, and is solved exactly (``elimination.py``). If even that needs tables above
the memory limit, the answer is the strategy and the bound on all strategies, with their gap. A gap
below 1e-9 of the cost is due to rounding, and the strategy counts as proven.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gnnplace.arrays import LongArray
from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.sharding.solver.classes import table_classes
from gnnplace.sharding.solver.elimination import (
    MEMORY_LIMIT,
    TooLargeError,
    cheapest,
    min_plus,
)
from gnnplace.sharding.solver.message_passing import Bounds, message_bounds
from gnnplace.sharding.solver.tree import elimination_order

SMALL = 2e8  # Cells of an elimination that is not worth bounds: some ten milliseconds.
FEW = 3e6  # Cells of all tables from which an order is not even looked for.
SWEEPS = (4, 60)  # The second where the first has left too much.
LARGE = 3e8  # Cells of an elimination that more sweeps should make smaller.
# Shares of the gap that are still almost the least.
NEAR = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-6)
# Relative to the cost: a bound this near discards all that can be discarded.
CLOSE = 1e-9


@dataclass(frozen=True)
class ShardingResult:
    """The best strategy found.

    Attributes:
        configuration: configuration index of each node. [N]
        seconds: the seconds of the search alone.
        exact: whether it is proven to be the best.
        bound: no strategy costs less; None where nothing is known.
    """

    cost: float
    memory: float | None
    configuration: tuple[int, ...]
    seconds: float
    exact: bool
    bound: float | None = None

    @property
    def gap(self) -> float | None:
        """Return by how much the strategy may exceed the best, relative to its cost, or None."""
        if self.exact:
            return 0.0
        if self.bound is None or self.cost <= 0:
            return None
        return (self.cost - self.bound) / self.cost


def best_strategy(problem: ShardingProblem, *, bounded: bool = False) -> ShardingResult:
    """Return the configuration of least cost.

    Args:
        problem: the cost tables of nodes and edges.
        bounded: If an intermediate table would take more than ``MEMORY_LIMIT`` bytes, answer
            with the best strategy known and a bound of the best there is.

    Raises:
        TooLargeError: a table would be larger than that, and not ``bounded``.
    """
    begin = time.perf_counter()
    remaining, bounds = _discard(problem, SMALL)
    if bounds is not None and _proven(remaining, bounds):
        return _result(problem, bounds.configuration, begin, bounds.bound)
    try:
        configuration = remaining.solve()
    except TooLargeError:
        if not bounded:
            raise
        bounds = bounds or message_bounds(problem, SWEEPS[1])
        return _result(problem, bounds.configuration, begin, bounds.bound)
    return _result(problem, configuration, begin, None)


def best_with_bounds(problem: ShardingProblem) -> tuple[tuple[int, ...], Bounds]:
    """Return the configuration of least cost, and bounds of every configuration.

    Raises:
        TooLargeError: a table would be larger than the memory limit.
    """
    remaining, bounds = _discard(problem, -1.0)
    assert bounds is not None
    if _proven(remaining, bounds):
        return bounds.configuration, bounds
    return remaining.solve(), bounds


def warm() -> None:
    """Compile the kernels (or load them from the cache), so that no search's seconds count it."""
    min_plus(np.zeros((1, 1)), np.zeros((1, 1)))
    table_classes(np.zeros((1, 1)))
    pair = (Edge(0, 1, np.zeros((1, 1))),)
    message_bounds(
        ShardingProblem(
            name="warm",
            devices=1,
            names=("a", "b"),
            cost=(np.zeros(1),) * 2,
            edges=pair,
        ),
        1,
    )


def _result(
    problem: ShardingProblem,
    configuration: tuple[int, ...],
    begin: float,
    bound: float | None,
) -> ShardingResult:
    seconds = time.perf_counter() - begin
    cost = problem.value(configuration)
    memory = problem.bytes(configuration)
    exact = bound is None or cost - bound <= CLOSE * abs(cost)
    return ShardingResult(
        cost=cost,
        memory=memory,
        configuration=configuration,
        seconds=seconds,
        exact=exact,
        bound=cost if exact else bound,
    )


@dataclass(frozen=True, eq=False)
class _Remaining:
    """A problem with a subset of each node's configurations.

    Attributes:
        problem: the tables of these configurations.
        subsets: their indices in the full problem. N arrays
    """

    problem: ShardingProblem
    subsets: list[LongArray]

    def solve(self) -> tuple[int, ...]:
        """Return the best strategy, in the indices of the full problem."""
        if all(len(rows) == 1 for rows in self.subsets):
            return tuple(int(rows[0]) for rows in self.subsets)
        configuration = cheapest(self.problem, self.order[0], MEMORY_LIMIT)
        return tuple(
            int(rows[k]) for rows, k in zip(self.subsets, configuration, strict=True)
        )

    @property
    def cells(self) -> int:
        """Return the number of cells of all tables between nodes."""
        return sum(edge.cost.size for edge in self.problem.edges)

    @cached_property
    def order(self) -> tuple[list[int], float]:
        """Return an order of elimination, and the number of cells that it takes."""
        sizes = [len(cost) for cost in self.problem.cost]
        return elimination_order(self.problem.neighbours(), sizes)


def _proven(remaining: _Remaining, bounds: Bounds) -> bool:
    """Return whether an elimination would take long and only tell differences of rounding."""
    return bounds.meets(CLOSE) and remaining.order[1] > SMALL


def _discard(
    problem: ShardingProblem, small: float
) -> tuple[_Remaining, Bounds | None]:
    """Discard configurations that are in no best strategy; return the rest, and the bounds that say
    so.

    Args:
        problem: the cost tables of nodes and edges.
        small: cells of an elimination up to which nothing is done.
    """
    remaining = _Remaining(problem, [np.arange(len(cost)) for cost in problem.cost])
    bounds: Bounds | None = None
    for sweeps, cells, limit in zip(SWEEPS, (FEW, LARGE), (small, LARGE), strict=True):
        if remaining.cells <= min(cells, limit) and remaining.order[1] <= limit:
            break
        sharper = message_bounds(remaining.problem, sweeps, enough=CLOSE)
        if bounds is None:
            bounds = sharper
        else:
            sharper = _better(remaining.problem, sharper)
            bounds = bounds.sharpen(sharper, remaining.subsets)
        # A configuration whose bound is above the cost of the strategy in hand is in no best one.
        rows = [
            np.flatnonzero(node_bounds <= sharper.cost) for node_bounds in sharper.node
        ]
        subsets = [
            subset[node_rows]
            for subset, node_rows in zip(remaining.subsets, rows, strict=True)
        ]
        remaining = _Remaining(remaining.problem.restrict_to(rows), subsets)
    return remaining, bounds


def _better(problem: ShardingProblem, bounds: Bounds) -> Bounds:
    """Return the bounds with the best strategy among configurations of almost the least bound.

    Messages alone can't choose between strategies that cost the same; elimination can.
    """
    for share in NEAR:
        above = share * (bounds.cost - bounds.bound)
        rows = [np.flatnonzero(part <= part.min() + above) for part in bounds.node]
        near = _Remaining(problem.restrict_to(rows), rows)
        if near.cells <= FEW and near.order[1] <= SMALL:
            configuration = near.solve()
            cost, configuration = min(
                (bounds.cost, bounds.configuration),
                (problem.value(configuration), configuration),
            )
            return replace(bounds, configuration=configuration, cost=cost)
    return bounds
