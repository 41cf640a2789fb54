"""Supported strategies: those that are best for some weighing of time and memory.

They are the corners of the frontier's convex hull, found by dichotomy (Aneja and Nair, 1979): the
weighing in which two neighbours cost the same either has a better strategy, which lies between
them, or proves that there is none. What they leave open is a staircase of regions: a strategy that
none of them dominates is faster than the next and smaller than the last, for some two neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gnnplace.arrays import FloatArray
from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.sharding.solver.search import best_with_bounds
from gnnplace.sharding.solver.tree import Factors

Weight = tuple[float, float]
Wanted = Callable[["Point", "Point"], bool]
SOLVES = 24  # Weighings solved at most; each costs one search and later one bound.


@dataclass(frozen=True)
class Point:
    """A strategy with its time and memory."""

    time: float
    memory: float
    configuration: tuple[int, ...]


@dataclass
class Supported:
    """Strategies that are best for the weighings solved so far.

    Attributes:
        wanted: whether the gap between two neighbours matters.
        points: strategies; in the order in which they were found.
        weights: weighings that were solved.
        bounds: For each weighing, the least cost of a strategy with each configuration.
        gaps: neighbours that may have another supported point between them.
    """

    problem: ShardingProblem
    factors: Factors
    wanted: Wanted
    points: list[Point] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    bounds: list[tuple[FloatArray, ...]] = field(default_factory=list)
    gaps: list[tuple[Point, Point]] = field(default_factory=list)

    def solve(self, weight: Weight) -> Point:
        """Return the best strategy for one weighing."""
        count = len(self.problem.names)
        weighted_tables = self.factors.weighted([weight])
        # Equal tables stay one object.
        first = {id(table): table[0] for table in weighted_tables}
        tables = [first[id(table)] for table in weighted_tables]
        scopes = zip(self.factors.scopes[count:], tables[count:], strict=True)
        edges = tuple(Edge(scope[0], scope[1], table) for scope, table in scopes)
        names = self.problem.names
        name = self.problem.name
        weighted = ShardingProblem(
            name=name,
            devices=1,
            names=names,
            cost=tuple(tables[:count]),
            edges=edges,
        )
        configuration, bounds = best_with_bounds(weighted)
        point = Point(
            self.problem.value(configuration),
            self.problem.bytes(configuration) or 0,
            configuration,
        )
        self.weights.append(weight)
        self.bounds.append(bounds.node)
        self.points.append(point)
        return point

    def refine(self, solves: int, width: Callable[[Point, Point], float]) -> None:
        """Look between neighbours, the widest gap first.

        Args:
            solves: weighings to have solved in the end, at most.
            width: the width of a gap between the faster and the smaller one; 0: of no interest.
        """
        while self.gaps and len(self.weights) < solves:
            self.gaps.sort(key=lambda gap: width(*gap))
            fast, small = self.gaps.pop()
            if (
                width(fast, small) > 0
                and fast.memory > small.memory
                and self.wanted(fast, small)
            ):
                self._divide(fast, small)

    def _divide(self, fast: Point, small: Point) -> None:
        """Look for a point below the line through two neighbours; add the gaps beside it."""
        more_time = small.time - fast.time
        less_memory = fast.memory - small.memory
        weight = more_time / less_memory
        point = self.solve((1.0, weight))
        value_on_line = fast.time + weight * fast.memory
        value = point.time + weight * point.memory
        # Differences of rounding do not count.
        if value < value_on_line * (1 - 1e-12):
            self.gaps += [(fast, point), (point, small)]


def find_undominated(points: list[Point]) -> list[Point]:
    """Return the points that none matches in both, by time; differences of rounding do not
    count.
    """
    points_kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.time, point.memory)):
        if not points_kept or point.memory < points_kept[-1].memory * (1 - 1e-13):
            if points_kept and point.time <= points_kept[-1].time * (1 + 1e-13):
                points_kept.pop()
            points_kept.append(point)
    return points_kept


def list_supported_points(
    problem: ShardingProblem,
    factors: Factors,
    wanted: Wanted = lambda fast, small: True,
) -> Supported:
    """Return supported points, the widest gaps first.

    Args:
        problem: the cost tables, with memory.
        factors: the tables by the nodes that they are over.
        wanted: whether the gap between two neighbours matters.
    """
    result = Supported(problem, factors, wanted)
    fastest = result.solve((1.0, 0.0))
    smallest = result.solve((0.0, 1.0))
    result.gaps.append((fastest, smallest))
    result.refine(
        SOLVES,
        lambda fast, small: (small.time - fast.time) * (fast.memory - small.memory),
    )
    return result
