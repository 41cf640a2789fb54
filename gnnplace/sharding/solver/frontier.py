"""The Pareto frontier of strategies in time and memory (FT: Cai et al., 2020, arXiv 2004.10856).

Formulation: the elimination of ``elimination.py``, where every cell has the list of its
non-dominated points. Adding tables is the Minkowski sum of lists, and taking out a node is their
union. Three rules keep the lists short:

1. Supported points (``supported.py``) leave open a staircase of regions, one between two
   neighbours. A strategy outside of all regions is dominated by a supported one.
2. For every weighting solved there, inside and outside costs (``passes.py``) bound the complete
   strategies of a configuration, a pair of cells, or a partial point. It is dropped if it cannot
   be below the corner of any region in all weightings (``kernels.py``).
3. With ``epsilon``, lists are thinned: of points close in time, the one with the least memory
   stays. Close is a share of the point's time and the least time of all the rest together, so
   replacing one by the other makes any strategy slower by at most that share. The product of the
   steps' shares is at most 1 + epsilon: for every strategy there is one in the answer with no more
   memory and at most (1 + epsilon) times its time.

Exact without ``epsilon``; where that would take too long, the answer says within which epsilon it
is complete. Times must not be negative for epsilon to mean that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.sharding.solver.frontier_search import Corner, search
from gnnplace.sharding.solver.search import ShardingResult, best_strategy
from gnnplace.sharding.solver.supported import (
    Point,
    Supported,
    find_undominated,
    list_supported_points,
)
from gnnplace.sharding.solver.tree import make_factors


@dataclass(frozen=True)
class Frontier:
    """The answer.

    Attributes:
        points: The points by time, ascending; memory falls strictly.
        epsilon: 0 if exact; else no strategy has less memory than a point here and a time more
            than (1 + epsilon) times smaller.
        seconds: the seconds of the search alone.
    """

    points: tuple[ShardingResult, ...]
    epsilon: float
    seconds: float

    @property
    def knee(self) -> int | None:
        """Index of the point farthest below the line between both ends; None without one."""
        if len(self.points) < 3:
            return None
        cost = np.array([point.cost for point in self.points])
        memory = np.array([point.memory for point in self.points])
        slower = cost[-1] - cost
        leaner = memory[0] - memory
        below = slower / slower[0]
        below += leaner / leaner[-1]
        return int(below.argmax())


def pareto_frontier(
    problem: ShardingProblem, epsilon: float = 0.0, memory_limit: float | None = None
) -> Frontier:
    """Return all non-dominated strategies, exact or within epsilon.

    Args:
        problem: cost and memory tables.
        epsilon: relative error of time that is allowed from the start.
        memory_limit: bytes that a strategy may take; None: any.

    Raises:
        InputError: epsilon is negative, or a limit for a problem without memory tables.
        InfeasibleError: no strategy is within the limit.
        UnsupportedError: even the search of one strategy would take too much memory.
    """
    _check(problem, epsilon, memory_limit)
    if not problem.has_memory:
        best = best_strategy(problem)
        return Frontier((best,), 0.0, best.seconds)
    begin = time.perf_counter()
    factors = make_factors(problem)
    if memory_limit is None:
        limit = np.inf
    else:
        limit = memory_limit * (1 + 1e-12)
    supported = list_supported_points(
        problem, factors, lambda fast, small: small.memory <= limit
    )
    _check_limit(min(point.memory for point in supported.points), limit)

    def corners(points: list[Point]) -> list[Corner]:
        gaps = pairwise(find_undominated(points))
        within_limit = [(a, b) for a, b in gaps if b.memory <= limit]
        return [(b.time, min(a.memory, limit)) for a, b in within_limit]

    return _answer(supported, corners, epsilon, limit, begin)


def cheapest_within(problem: ShardingProblem, memory_limit: float) -> ShardingResult:
    """Return the strategy of least cost that takes at most ``memory_limit`` bytes.

    Where that would take too long, the best one found, which is then not ``exact``.

    Raises:
        InputError: the problem has no memory tables.
        InfeasibleError: no strategy is within the limit; says what the smallest takes.
        UnsupportedError: even the search without a limit would take too much memory.
    """
    _check(problem, 0.0, memory_limit)
    begin = time.perf_counter()
    limit = memory_limit * (1 + 1e-12)
    supported = list_supported_points(
        problem,
        make_factors(problem),
        lambda fast, small: fast.memory > limit >= small.memory,
    )
    _check_limit(min(point.memory for point in supported.points), limit)

    def corners(points: list[Point]) -> list[Corner]:
        return [(min(point.time for point in points if point.memory <= limit), limit)]

    return _answer(supported, corners, 0.0, limit, begin).points[0]


def smallest_within(problem: ShardingProblem, time_limit: float) -> ShardingResult:
    """Return the strategy of least memory whose cost is at most ``time_limit`` seconds.

    Where that would take too long, the smallest one found, which is then not ``exact``.

    Raises:
        InputError: The problem has no memory tables.
        InfeasibleError: No strategy is within the limit; says what the fastest takes.
        UnsupportedError: Even the search without a limit would take too much memory.
    """
    if not problem.has_memory:
        raise InputError(
            "time limit: the sharding problem has no memory tables to choose by"
        )
    if not time_limit >= 0:
        raise InputError(f"time limit: {time_limit:g} is not a number of seconds")
    begin = time.perf_counter()
    limit = time_limit * (1 + 1e-12)
    supported = list_supported_points(
        problem,
        make_factors(problem),
        lambda fast, small: fast.time <= limit < small.time,
    )
    fastest = min(point.time for point in supported.points)
    if fastest > limit:
        raise InfeasibleError(
            f"time limit: no strategy takes at most {time_limit:.10g} s; the fastest takes "
            f"{fastest:.10g} s"
        )

    def corners(points: list[Point]) -> list[Corner]:
        return [(limit, min(point.memory for point in points if point.time <= limit))]

    frontier = _answer(supported, corners, 0.0, np.inf, begin)
    return [point for point in frontier.points if point.cost <= limit][-1]


def warm_frontier() -> None:
    """Compile the kernels (or load them from the cache), so that no search's seconds count it."""
    costs = (np.array([0.0, 3.0, 4.0]), np.array([0.0, 1.0]))
    memory = (np.array([6.0, 4.0, 0.0]), np.array([1.0, 0.0]))
    edges = (Edge(0, 1, np.ones((3, 2))),)
    pareto_frontier(
        ShardingProblem(
            name="warm",
            devices=1,
            names=("a", "b"),
            cost=costs,
            edges=edges,
            memory=memory,
        )
    )


def _check(
    problem: ShardingProblem, epsilon: float, memory_limit: float | None
) -> None:
    if not 0 <= epsilon < np.inf:
        raise InputError(f"epsilon: {epsilon:g} is not a number from 0 on")
    if memory_limit is None:
        return
    if not problem.has_memory:
        raise InputError("memory limit: the sharding problem has no memory tables")
    if not memory_limit >= 0:
        raise InputError(f"memory limit: {memory_limit:g} is not a number of bytes")


def _check_limit(smallest: float, limit: float) -> None:
    if smallest > limit:
        raise InfeasibleError(
            f"memory limit: no strategy takes at most {limit:.10g} bytes; the smallest takes "
            f"{smallest:.10g}"
        )


def _answer(
    supported: Supported,
    corners: Callable[[list[Point]], list[Corner]],
    epsilon: float,
    limit: float,
    begin: float,
) -> Frontier:
    """Search the regions below ``corners``; what is above the limit is left out."""
    candidates, error = search(supported, corners, epsilon)
    points = [point for point in find_undominated(candidates) if point.memory <= limit]
    seconds = time.perf_counter() - begin
    results = tuple(
        ShardingResult(
            cost=point.time,
            memory=point.memory,
            configuration=point.configuration,
            seconds=seconds,
            exact=error == 0,
        )
        for point in points
    )
    return Frontier(points=results, epsilon=error, seconds=seconds)
