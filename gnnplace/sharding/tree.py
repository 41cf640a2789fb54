"""The elimination as a tree of steps, and what a weighted cost says about every part of it.

Each step takes the tables that its node is in (factors of the problem and tables of earlier steps),
adds them up and takes the node out; its own table goes to exactly one later step, so the steps form
a tree with one root. A step has at most two children: further ones are first joined by steps
without a node. For one weighted cost, ``inside`` is the least cost of the steps below a table's
cell and ``outside`` that of all the rest (the two passes of bucket-tree elimination: Kask, Dechter,
Larrosa, Dechter, 2005), so that their sum bounds every strategy that uses the cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnnplace.errors import UnsupportedError
from gnnplace.sharding.ordering import elimination_order
from gnnplace.sharding.problem import Edge, ShardingProblem

FloatArray = NDArray[np.float64]
Scope = tuple[int, ...]
WEIGHING = -1  # Stands for the axis of weighings among nodes.
BATCH = 2_000_000  # Cells of one sum, over weighings that go together.
CELL_LIMIT = 60_000_000  # Cells of one sum; some arrays of this size are there at once.


class TableTooLargeError(UnsupportedError):
    """A sum that has more cells than ``CELL_LIMIT``."""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        node: that is taken out; None where two tables are only added.
        scope: nodes of the step's table.
        factors: indices of the problem's tables that come in here.
        children: indices of the steps whose tables come in here; at most two.
    """

    node: int | None
    scope: Scope
    factors: tuple[int, ...]
    children: tuple[int, ...]

    @property
    def axes(self) -> Scope:
        """Nodes of the sum: the scope, then the node."""
        return self.scope if self.node is None else (*self.scope, self.node)


@dataclass(frozen=True, eq=False)
class Factors:
    """Tables of time and memory: one a node, then one a pair of nodes with an edge.

    Attributes:
        scopes: the nodes of each, ascending.
        kept: configurations of each node that are still in the tables.
    """

    scopes: tuple[Scope, ...]
    time: tuple[FloatArray, ...]
    memory: tuple[FloatArray, ...]
    kept: tuple[NDArray[np.int64], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Configurations of each node that are left."""
        return tuple(len(kept) for kept in self.kept)

    def weighted(self, weights: Sequence[tuple[float, float]]) -> list[FloatArray]:
        """``weight[0] * time + weight[1] * memory`` of every table; equal ones are one
        array. [W, K of scope]
        """
        of_time, of_memory = np.array(weights, dtype=np.float64).reshape(-1, 2).T
        made: dict[tuple[int, int], FloatArray] = {}
        for time, memory in zip(self.time, self.memory, strict=True):
            key = (id(time), id(memory))
            if key not in made:
                parts = np.multiply.outer(of_time, time), np.multiply.outer(of_memory, memory)
                made[key] = parts[0] + parts[1]
        return [made[id(t), id(m)] for t, m in zip(self.time, self.memory, strict=True)]

    def restrict(self, masks: Sequence[NDArray[np.bool_]]) -> Factors:
        """Without the configurations whose mask is false."""

        def cut(table: FloatArray, scope: Scope) -> FloatArray:
            return np.ascontiguousarray(table[np.ix_(*(masks[node] for node in scope))])

        return Factors(
            self.scopes,
            tuple(cut(t, s) for t, s in zip(self.time, self.scopes, strict=True)),
            tuple(cut(m, s) for m, s in zip(self.memory, self.scopes, strict=True)),
            tuple(kept[mask] for kept, mask in zip(self.kept, masks, strict=True)),
        )


def factors_of(problem: ShardingProblem) -> Factors:
    """The tables of a problem; parallel edges added up, missing memory zero."""
    memories = problem.memory or (None,) * len(problem.names)
    pairs = combined_edges(problem)
    bytes_ = [Edge(e.u, e.v, np.zeros_like(e.cost) if e.memory is None else e.memory)
              for e in problem.edges]  # fmt: skip
    of_bytes = ShardingProblem("", 1, problem.names, problem.cost, tuple(bytes_))
    pair_bytes = combined_edges(of_bytes)
    nodes = zip(problem.cost, memories, strict=True)
    own = [np.zeros_like(cost) if memory is None else memory for cost, memory in nodes]
    return Factors(
        (*((i,) for i in range(len(own))), *pairs),
        (*problem.cost, *pairs.values()),
        (*own, *(pair_bytes[key] for key in pairs)),
        tuple(np.arange(len(cost)) for cost in problem.cost),
    )


def combined_edges(problem: ShardingProblem) -> dict[tuple[int, int], FloatArray]:
    """Edge tables with parallel edges added up; the smaller node is the first axis."""
    pairs: dict[tuple[int, int], FloatArray] = {}
    for edge in problem.edges:
        key = (min(edge.u, edge.v), max(edge.u, edge.v))
        cost = edge.cost if edge.u < edge.v else edge.cost.T
        pairs[key] = pairs[key] + cost if key in pairs else cost
    return pairs


def elimination_tree(factors: Factors) -> tuple[Step, ...]:
    """The steps, children first; the last is the root and has an empty scope."""
    sizes = factors.sizes
    adjacency: list[set[int]] = [set() for _ in sizes]
    for scope in factors.scopes[len(sizes) :]:
        adjacency[scope[0]].add(scope[1])
        adjacency[scope[1]].add(scope[0])
    steps: list[Step] = []
    waiting = set(range(len(factors.scopes)))  # Tables not taken yet: factors here,
    open_steps: list[int] = []  # and steps here.
    for node in elimination_order(adjacency, sizes)[0]:
        mine = tuple(k for k in sorted(waiting) if node in factors.scopes[k])
        waiting -= set(mine)
        below = [k for k in open_steps if node in steps[k].scope]
        open_steps = [k for k in open_steps if k not in below]
        below = _join(steps, below)
        around = {n for k in mine for n in factors.scopes[k]}
        around |= {n for k in below for n in steps[k].scope}
        steps.append(Step(node, tuple(sorted(around - {node})), mine, tuple(below)))
        open_steps.append(len(steps) - 1)
    roots = _join(steps, open_steps)
    if len(roots) > 1:
        steps.append(Step(None, (), (), tuple(roots)))
    return tuple(steps)


def _join(steps: list[Step], tables: list[int]) -> list[int]:
    """Adds steps that add up tables until two are left; small ones first."""
    left = sorted(tables, key=lambda k: len(steps[k].scope))
    while len(left) > 2:
        scope = tuple(sorted({*steps[left[0]].scope, *steps[left[1]].scope}))
        steps.append(Step(None, scope, (), (left[0], left[1])))
        left = sorted([*left[2:], len(steps) - 1], key=lambda k: len(steps[k].scope))
    return left


def spread(table: FloatArray, scope: Scope, axes: Scope) -> FloatArray:
    """``table`` over ``scope`` as an array that broadcasts over ``axes``."""
    present = [node for node in axes if node in scope]
    turned = table.transpose([scope.index(node) for node in present])
    sizes = dict(zip(present, turned.shape, strict=True))
    return turned.reshape([sizes.get(node, 1) for node in axes])


def step_sum(
    step: Step, tables: Sequence[FloatArray], scopes: Sequence[Scope], sizes: Sequence[int]
) -> FloatArray:
    """The sum of ``tables`` over the step's axes.

    Raises:
        TableTooLargeError: it would have more cells than ``CELL_LIMIT``.
    """
    return _add_up(step.axes, tables, scopes, [sizes[node] for node in step.axes])


def _add_up(
    axes: Scope, tables: Sequence[FloatArray], scopes: Sequence[Scope], shape: list[int]
) -> FloatArray:
    if math.prod(shape) > CELL_LIMIT:
        raise TableTooLargeError(
            f"frontier: a table of {math.prod(shape):.3g} cells is more than the limit of "
            f"{CELL_LIMIT:.3g}; use fewer configurations, or ask for the best strategy alone"
        )
    total = np.zeros(shape)
    for table, scope in zip(tables, scopes, strict=True):
        total += spread(table, scope, axes)
    return total


@dataclass(frozen=True, eq=False)
class Passes:
    """Least weighted costs, for W weighings.

    Attributes:
        inside: of each step's table, of all that is below. [W, K of scope]
        outside: of each step's table, of all the rest. [W, K of scope]
        node: of each node's configurations, of whole strategies. [W, K]
    """

    inside: tuple[FloatArray, ...]
    outside: tuple[FloatArray, ...]
    node: tuple[FloatArray, ...]


def weights_at_once(steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """Weighings whose passes go together: small tables are dominated by the calls."""
    largest = max(math.prod(sizes[node] for node in step.axes) for step in steps)
    return max(1, BATCH // largest)


def two_passes(
    steps: Sequence[Step], factors: Factors, weights: Sequence[tuple[float, float]]
) -> Passes:
    """Inside and outside costs of every cell for some weighted costs.

    Raises:
        TableTooLargeError: a sum would have more cells than ``CELL_LIMIT``.
    """
    tables = factors.weighted(weights)
    inside: list[FloatArray] = []
    for step in steps:
        total = _step_total(step, steps, factors, tables, inside)
        inside.append(total if step.node is None else total.min(axis=-1))
    outside = [np.zeros(0)] * len(steps)
    node = [np.zeros(0)] * len(factors.sizes)
    outside[-1] = np.zeros(len(weights))
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        total = _step_total(step, steps, factors, tables, inside)
        total += outside[index] if step.node is None else outside[index][..., None]
        if step.node is not None:
            node[step.node] = total.min(axis=tuple(range(1, total.ndim - 1)))
        for child in step.children:
            outside[child] = _outside(step, steps[child].scope, total) - inside[child]
    return Passes(tuple(inside), tuple(outside), tuple(node))


def _outside(step: Step, scope: Scope, total: FloatArray) -> FloatArray:
    """Least cost of the whole for each cell of a child's table."""
    gone = tuple(k for k, other in enumerate(step.axes, start=1) if other not in scope)
    kept = tuple(other for other in step.axes if other in scope)
    return spread(total.min(axis=gone), (WEIGHING, *kept), (WEIGHING, *scope))


def _step_total(
    step: Step,
    steps: Sequence[Step],
    factors: Factors,
    tables: Sequence[FloatArray],
    inside: Sequence[FloatArray],
) -> FloatArray:
    """The sum of all that comes into a step, for every weighing."""
    own = [tables[k] for k in step.factors] + [inside[k] for k in step.children]
    scopes = [factors.scopes[k] for k in step.factors] + [steps[k].scope for k in step.children]
    shape = [len(tables[0]), *(factors.sizes[node] for node in step.axes)]
    return _add_up((WEIGHING, *step.axes), own, [(WEIGHING, *scope) for scope in scopes], shape)
