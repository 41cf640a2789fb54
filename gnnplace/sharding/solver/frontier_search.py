"""The search for points between the supported ones: bounds, then lists (see ``frontier.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, LongArray
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.kernels import (
    POSITION_BITS,
    Children,
    Limits,
    Reach,
    Sums,
    eliminate,
)
from gnnplace.sharding.solver.passes import two_passes, weights_at_once
from gnnplace.sharding.solver.supported import (
    Point,
    Supported,
    Weight,
    find_undominated,
)
from gnnplace.sharding.solver.tree import (
    Factors,
    Step,
    TableTooLargeError,
    elimination_tree,
    step_sum,
)

Corner = tuple[float, float]
EPSILONS = (2.0, 0.5, 0.1, 0.02, 0.005)
FIRST_WORK = 3e7  # Points merged in the first attempt: a quarter of a second.
WORK = 2e9  # Points merged in a stage: about ten seconds.
POINTS = 1e8  # The most points of all lists at once; 24 bytes each
REGIONS = 48
# Weighings in all if no stage ends; each takes some ten milliseconds.
MORE_SOLVES = 150
# Shares of the error, by a step's number of children: sums need it most.
SHARES = (0.05, 0.25, 1.0)
WEIGHTS = 16
SLACK = 1e-14  # Relative to all time or memory: smaller differences are rounding
BOUND_SLACK = 1e-9
SHORT = 16  # Lists up to this length are not thinned.


@dataclass(frozen=True, eq=False)
class _Lists:
    """Points of a step's table, see ``kernels.py``."""

    time: FloatArray
    memory: FloatArray
    origin: LongArray
    offset: LongArray


class _TooMuchWork(Exception):
    """The work limit was reached."""


def search(
    supported: Supported, corners: Callable[[list[Point]], list[Corner]], epsilon: float
) -> tuple[list[Point], float]:
    """Look for strategies in the regions below ``corners``.

    A short attempt at ``epsilon`` comes first, then stages from a large epsilon down to it: what a
    stage finds shrinks the regions of the next. Where no stage ends, more supported points are the
    answer.

    Args:
        supported: the points to begin with.
        corners: time and memory of each region's corner, by the points met so far.
        epsilon: The relative gap that is allowed.

    Returns:
        All points met, and the epsilon within which they are complete.
    """
    steps = elimination_tree(supported.factors)
    weights = _pick(supported.weights, WEIGHTS)
    factors = supported.factors
    points = list(supported.points)
    reached = _gap(supported.points)
    coarse_stages = [(stage, WORK) for stage in EPSILONS if stage > epsilon]
    for error, work in [(epsilon, FIRST_WORK), *coarse_stages, (epsilon, WORK)]:
        gaps = _merge_corners(corners(points))
        regions = _regions(gaps, weights)
        if gaps:
            bounded = _apply_bounds(supported, factors, gaps)
        else:
            bounded = None
        try:
            if bounded is None:
                pruned = None
            else:
                pruned = _prune_factors(steps, bounded, weights, regions)
            if pruned is None:
                return points, 0.0
            factors = pruned
            run = _PointsRun(
                steps, factors, weights, regions, points[0], np.log1p(error), work
            )
        except TableTooLargeError:
            break
        except _TooMuchWork:
            if work == FIRST_WORK:
                continue
            break
        points += run.points(supported.problem)
        reached = min(reached, error)
        if error == epsilon:
            return points, reached
    # No stage ended within its work: more weighings find what they can.
    supported.refine(
        MORE_SOLVES, lambda fast, small: small.time - (1 + epsilon) * fast.time
    )
    points += supported.points
    return points, min(reached, _gap(supported.points))


def _gap(points: list[Point]) -> float:
    """Return the epsilon of supported points alone.

    What lies between two neighbours is slower than the faster one, which is best for its weighing,
    and has no less memory than the other one.
    """
    pairs = list(pairwise(find_undominated(points)))
    if any(fast.time <= 0 for fast, _ in pairs):
        return float("inf")
    return max((slow.time / fast.time - 1.0 for fast, slow in pairs), default=0.0)


def _pick(weights: list[Weight], count: int) -> list[Weight]:
    """Return at most ``count`` weights, spread evenly; the first is (1, 0)."""

    def slope(weight: Weight) -> float:
        return weight[1] / weight[0] if weight[0] else np.inf

    ordered = sorted(set(weights), key=slope)
    if len(ordered) <= count:
        return ordered
    indices = np.linspace(0, len(ordered) - 1, count).round().astype(int)
    return [ordered[i] for i in indices]


def _merge_corners(corners: list[Corner]) -> list[Corner]:
    """Return at most ``REGIONS`` corners: neighbours share the corner that covers both."""
    if not corners:
        return []
    groups = np.array_split(np.arange(len(corners)), min(REGIONS, len(corners)))
    merged = []
    for group in groups:
        most_time = max(corners[i][0] for i in group)
        most_memory = max(corners[i][1] for i in group)
        merged.append((most_time, most_memory))
    return merged


def _regions(corners: list[Corner], weights: list[Weight]) -> FloatArray:
    """Return the weighted cost of every corner, a little above for rounding. [R, W]"""
    exact = _weigh(corners, weights)
    if not corners:
        return exact
    magnitudes = [(abs(time), abs(memory)) for time, memory in corners]
    slack = BOUND_SLACK * _weigh(magnitudes, weights).max(axis=0)
    return exact + slack


def _weigh(corners: list[Corner], weights: list[Weight]) -> FloatArray:
    """Return the weighted cost of every corner. [R, W]"""
    return np.array(
        [
            [
                time_weight * time + memory_weight * memory
                for time_weight, memory_weight in weights
            ]
            for time, memory in corners
        ]
    )


def _apply_bounds(
    supported: Supported, factors: Factors, corners: list[Corner]
) -> Factors | None:
    """Return the factors without configurations that the bounds of all solved weighings keep out of
    all regions; None if a node has no configuration left.
    """
    regions = _regions(corners, supported.weights)
    masks: list[BoolArray] = []
    for node, configurations in enumerate(factors.configurations):
        alive = np.ones((len(configurations), len(regions)), bool)
        for w, bounds in enumerate(supported.bounds):
            alive &= bounds[node][configurations][:, None] <= regions[None, :, w]
        masks.append(np.asarray(alive.any(axis=1)))
    if all(mask.any() for mask in masks):
        return factors.restrict(masks)
    return None


def _prune_factors(
    steps: Sequence[Step], factors: Factors, weights: list[Weight], regions: FloatArray
) -> Factors | None:
    """Return the factors without configurations that are in no region in all weighings; None if a
    node has no configuration left.
    """
    # Weighings in the middle discard the most, so that the others have less to look at.
    from_middle = np.abs(np.arange(len(weights)) - len(weights) / 2)
    turn = np.argsort(from_middle, kind="stable")
    weights = [weights[k] for k in turn]
    regions = regions[:, turn]
    alive = [np.ones((size, len(regions)), bool) for size in factors.sizes]
    begin = 0
    count = 1
    while begin < len(weights):
        end = begin + min(count, weights_at_once(steps, factors.sizes))
        count *= 2
        node = two_passes(steps, factors, weights[begin:end]).node
        for k, bound in enumerate(node):
            below = bound.T[:, None] <= regions[None, :, begin:end]
            alive[k] &= below.all(axis=2)
        begin = end
        masks: list[BoolArray] = [np.asarray(rows.any(axis=1)) for rows in alive]
        if not all(mask.any() for mask in masks):
            return None
        if not all(mask.all() for mask in masks):
            factors = factors.restrict(masks)
            alive = [rows[mask] for rows, mask in zip(alive, masks, strict=True)]
    return factors


def _bounds(
    steps: Sequence[Step], factors: Factors, weights: list[Weight]
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return inside and outside costs of every step's cells for all weighings. [cells, W]"""
    count = weights_at_once(steps, factors.sizes)
    passes = [
        two_passes(steps, factors, weights[k : k + count])
        for k in range(0, len(weights), count)
    ]

    def of_cells(parts: list[FloatArray]) -> FloatArray:
        return np.ascontiguousarray(
            np.concatenate([x.reshape(len(x), -1) for x in parts]).T
        )

    inside = [of_cells([p.inside[k] for p in passes]) for k in _range(steps)]
    return inside, [of_cells([p.outside[k] for p in passes]) for k in _range(steps)]


class _PointsRun:
    """One elimination with lists of points."""

    def __init__(
        self,
        steps: Sequence[Step],
        factors: Factors,
        weights: list[Weight],
        regions: FloatArray,
        scale: Point,
        error: float,
        work: float,
    ) -> None:
        self.steps = steps
        self.factors = factors
        self.regions = regions
        self.weights = np.array(weights)
        self.inside, self.outside = _bounds(steps, factors, weights)
        self.slack = (SLACK * abs(scale.time), SLACK * scale.memory)
        # The logarithm of 1 + epsilon is distributed over the steps.
        self.error, self.work = (error, work)
        self.lists: list[_Lists] = []
        for index in _range(steps):
            self.lists.append(self._eliminate(index))

    def _eliminate(self, index: int) -> _Lists:
        """Return the points of a step's table, from those of its children.

        Raises:
            _TooMuchWork: the limit of work or of points was reached.
        """
        step = self.steps[index]
        sizes = self.factors.sizes
        scope_sizes = [sizes[node] for node in step.scope]
        rows = int(np.prod(scope_sizes, dtype=np.int64))
        scopes = [self.factors.scopes[k] for k in step.factors]
        base = [
            step_sum(step, [tables[k] for k in step.factors], scopes, sizes).reshape(
                rows, -1
            )
            for tables in (self.factors.time, self.factors.memory)
        ]
        children = [self.lists[k] for k in step.children]
        ends = np.cumsum([0, *(len(part.time) for part in children)])
        offset = [
            part.offset[:-1] + end for part, end in zip(children, ends, strict=False)
        ]
        error = (
            self.error
            * SHARES[len(step.children)]
            / sum(SHARES[len(later.children)] for later in self.steps[index:])
        )
        room = float(POINTS - sum(len(part.time) for part in self.lists))
        # The lists of two children lie behind each other, so each list ends where the next begins.
        inside = [
            *(self.inside[k] for k in step.children),
            np.zeros((0, len(self.weights))),
        ]
        eliminated = eliminate(
            Sums(base[0], base[1]),
            Children(
                cell=self._cells(step, rows),
                time=_join_factors([part.time for part in children], np.float64),
                memory=_join_factors([part.memory for part in children], np.float64),
                offset=np.append(_join_factors(offset, np.int64), ends[-1]),
                inside=np.concatenate(inside),
            ),
            Reach(
                outside=self.outside[index], weights=self.weights, regions=self.regions
            ),
            Limits(
                slack=self.slack, error=error, short=SHORT, work=self.work, points=room
            ),
        )
        if not eliminated.finished:
            raise _TooMuchWork
        self.work -= eliminated.work
        self.error -= error if eliminated.thinned else 0.0
        return _Lists(
            time=eliminated.time,
            memory=eliminated.memory,
            origin=eliminated.origin,
            offset=eliminated.offset,
        )

    def _cells(self, step: Step, rows: int) -> LongArray:
        """Return which cell of each child belongs to each cell of the sum. [children, rows, K]"""
        sizes = self.factors.sizes
        start = 0
        if step.node is None:
            columns = 1
        else:
            columns = sizes[step.node]
        cells = np.zeros((len(step.children), rows, columns), np.int64)
        for k, child in enumerate(step.children):
            scope = self.steps[child].scope
            shape = [sizes[node] for node in scope]
            count = int(np.prod(shape, dtype=np.int64))
            numbers = np.arange(start, start + count, dtype=np.float64).reshape(shape)
            spread_out = step_sum(step, [numbers], [scope], sizes)
            cells[k] = spread_out.reshape(rows, columns)
            start += count
        return cells

    def points(self, problem: ShardingProblem) -> list[Point]:
        """Return the strategies of the root's points."""
        root = self.lists[-1]
        strategies = [self._strategy(k) for k in range(len(root.time))]
        points = []
        for strategy in strategies:
            memory = problem.bytes(strategy) or 0.0
            points.append(Point(problem.value(strategy), memory, strategy))
        return points

    def _strategy(self, position: int) -> tuple[int, ...]:
        """Walk down from one point of the root; every step's point says where it came from."""
        sizes = self.factors.sizes
        configuration = [0] * len(sizes)
        open_points = [(len(self.steps) - 1, position)]
        while open_points:
            index, k = open_points.pop()
            step = self.steps[index]
            lists = self.lists[index]
            cell = 0
            for node in step.scope:
                cell = cell * sizes[node] + configuration[node]
            code = int(lists.origin[lists.offset[cell] + k])
            if step.node is not None:
                configuration[step.node] = code >> (2 * POSITION_BITS)
            mask = (1 << POSITION_BITS) - 1
            positions = (code & mask, (code >> POSITION_BITS) & mask)
            open_points.extend(zip(step.children, positions, strict=False))
        pairs = zip(self.factors.configurations, configuration, strict=True)
        return tuple(int(configurations[k]) for configurations, k in pairs)


def _range(steps: Sequence[Step]) -> range:
    return range(len(steps))


def _join_factors(parts: list[NDArray], kind: type) -> NDArray:
    return np.concatenate([np.zeros(0, kind), *parts]).astype(kind)
