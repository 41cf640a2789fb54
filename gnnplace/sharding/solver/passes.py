"""Lower bounds on the strategies that use a cell of an elimination's tables, for weighted costs.

For one weighted cost, ``inside`` is the least cost of the steps below a table's cell and
``outside`` that of all the rest (the two passes of bucket-tree elimination: Kask, Dechter, Larrosa,
Dechter, 2005), so that their sum bounds every strategy that uses the cell.

With A[rest, v] the sum of a step's tables but one, B[v, w] that one, whose w is in no other, and
O[rest, w] the outside of the step's own table, all are min-plus products:

    inside = A B      outside of A's parts = O B' + A - part      outside of B = A' O
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.sharding.solver.elimination import min_plus_each
from gnnplace.sharding.solver.tree import (
    Factors,
    Scope,
    Step,
    add_up,
    check_cells,
    spread,
)

WEIGHING = -1  # Stands for the axis of weighings among nodes.
BATCH = 2_000_000  # Cells of one sum, over weighings that go together.


@dataclass(frozen=True, eq=False)
class Passes:
    """Least weighted costs, for W weighings.

    Attributes:
        inside: the least value of all that is below each step, by the cells of its table. [W, K of
            scope]
        outside: the least value of all the rest, by the cells of each step's table. [W, K of scope]
        node: the least value of a whole strategy with each configuration of each node. [W, K]
    """

    inside: tuple[FloatArray, ...]
    outside: tuple[FloatArray, ...]
    node: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class _Part:
    """A table that comes into a step; ``child``: the step that it is of, -1 for a factor."""

    scope: Scope
    table: FloatArray
    child: int


@dataclass(frozen=True, eq=False)
class _Inputs:
    """The tables that one step of the elimination adds up.

    Attributes:
        axes: nodes of the sum of ``parts``: those of the step's table, without ``partner``, then
            the step's node.
        total: The sum of the tables. [W, axes]
        parts: the tables of the step but ``pair``.
        pair: The table over the node and ``partner``, which no further part has; None where there
            is none.
        partner: the second node of ``pair``.
    """

    step: Step
    axes: Scope
    total: FloatArray
    parts: list[_Part]
    pair: _Part | None
    partner: int

    @property
    def last(self) -> int:
        """Return the number of configurations of the eliminated node."""
        return self.total.shape[-1]

    def matrix(self) -> FloatArray:
        """Return the sum with all but the node in one axis. [W, rest, K]"""
        return self.total.reshape(len(self.total), -1, self.last)

    def pair_matrix(self) -> FloatArray:
        """Return the pair's table. [W, K, K of partner]"""
        assert self.pair is not None
        assert self.step.node is not None
        axes = (WEIGHING, self.step.node, self.partner)
        return np.ascontiguousarray(
            spread(self.pair.table, (WEIGHING, *self.pair.scope), axes)
        )


def weights_at_once(steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """Return how many weighings go together: small tables are dominated by the calls."""
    largest = max(math.prod(sizes[node] for node in step.axes) for step in steps)
    return max(1, BATCH // largest)


def two_passes(
    steps: Sequence[Step], factors: Factors, weights: Sequence[tuple[float, float]]
) -> Passes:
    """Return inside and outside costs of every cell for some weighted costs.

    Raises:
        TableTooLargeError: a sum would have more cells than the limit.
    """
    tables = factors.weighted(weights)
    inside: list[FloatArray] = []
    for step in steps:
        inputs = _inputs(step, steps, factors, tables, inside)
        inside.append(_inside(inputs))
    outside = [np.zeros(0)] * len(steps)
    node = [np.zeros(0)] * len(factors.sizes)
    outside[-1] = np.zeros(len(weights))
    for index in range(len(steps) - 1, -1, -1):
        inputs = _inputs(steps[index], steps, factors, tables, inside)
        total = _least_costs(inputs, outside[index])
        gone = steps[index].node
        if gone is not None:
            node[gone] = total.min(axis=tuple(range(1, total.ndim - 1)))
        for part in inputs.parts:
            if part.child >= 0:
                outside[part.child] = _around(inputs, part, total) - part.table
        if inputs.pair is not None and inputs.pair.child >= 0:
            outside[inputs.pair.child] = _around_pair(inputs, outside[index])
    return Passes(tuple(inside), tuple(outside), tuple(node))


def _inputs(
    step: Step,
    steps: Sequence[Step],
    factors: Factors,
    tables: Sequence[FloatArray],
    inside: Sequence[FloatArray],
) -> _Inputs:
    """Return what comes into a step: its factors, and the tables of its children."""
    parts = [_Part(factors.scopes[k], tables[k], -1) for k in step.factors]
    parts += [_Part(steps[k].scope, inside[k], k) for k in step.children]
    pair = _splittable(step, parts)
    partner = WEIGHING
    axes = step.axes
    if pair is not None:
        partner = pair.scope[pair.scope[0] == step.node]
        parts = [part for part in parts if part is not pair]
        axes = tuple(k for k in axes if k != partner)
    count = len(tables[0])
    total = add_up(
        (WEIGHING, *axes),
        [part.table for part in parts],
        [(WEIGHING, *part.scope) for part in parts],
        [count, *(factors.sizes[k] for k in axes)],
    )
    check_cells([count, *(factors.sizes[k] for k in step.scope)])
    return _Inputs(
        step=step, axes=axes, total=total, parts=parts, pair=pair, partner=partner
    )


def _splittable(step: Step, parts: list[_Part]) -> _Part | None:
    """Return the largest pairwise table whose second node is in no further table."""
    if step.node is None or len(parts) < 2:
        return None
    num_tables = Counter(node for part in parts for node in part.scope)
    pairs = [
        part
        for part in parts
        if len(part.scope) == 2
        and num_tables[part.scope[part.scope[0] == step.node]] == 1
    ]
    return max(pairs, key=lambda part: part.table.size, default=None)


def _inside(inputs: _Inputs) -> FloatArray:
    """Return the step's table. [W, K of scope]"""
    if inputs.step.node is None:
        return inputs.total
    if inputs.pair is None:
        return inputs.total.min(axis=-1)
    product = min_plus_each(inputs.matrix(), inputs.pair_matrix())
    outer = inputs.axes[:-1]
    shape = [*inputs.total.shape[:-1], product.shape[2]]
    shaped = product.reshape(shape)
    return _turn_axes(shaped, (*outer, inputs.partner), inputs.step.scope)


def _turn_axes(table: FloatArray, axes: Scope, scope: Scope) -> FloatArray:
    """Return a table with its axes in another order; the weighings stay first."""
    return np.ascontiguousarray(
        table.transpose([0, *(1 + axes.index(k) for k in scope)])
    )


def _least_costs(inputs: _Inputs, outside: FloatArray) -> FloatArray:
    """Return the least cost of a strategy with each cell of the sum. [W, axes]"""
    if inputs.step.node is None:
        return inputs.total + outside
    if inputs.pair is None:
        return inputs.total + outside[..., None]
    turned = np.ascontiguousarray(inputs.pair_matrix().transpose(0, 2, 1))
    around = min_plus_each(_outside_matrix(inputs, outside), turned)
    return inputs.total + around.reshape(inputs.total.shape)


def _outside_matrix(inputs: _Inputs, outside: FloatArray) -> FloatArray:
    """Return the outside of the step's table, ``partner`` last. [W, rest, K of partner]"""
    pair_axes = (*inputs.axes[:-1], inputs.partner)
    turned = _turn_axes(outside, inputs.step.scope, pair_axes)
    return turned.reshape(len(turned), -1, turned.shape[-1])


def _around(inputs: _Inputs, part: _Part, total: FloatArray) -> FloatArray:
    """Return the least cost of a strategy with each cell of a part."""
    absent = tuple(
        k for k, node in enumerate(inputs.axes, start=1) if node not in part.scope
    )
    present = tuple(node for node in inputs.axes if node in part.scope)
    minimum = total.min(axis=absent)
    return spread(minimum, (WEIGHING, *present), (WEIGHING, *part.scope))


def _around_pair(inputs: _Inputs, outside: FloatArray) -> FloatArray:
    """Return the least cost of all but the pair for each of its cells. [W, K of its scope]"""
    assert inputs.pair is not None
    assert inputs.step.node is not None
    turned = np.ascontiguousarray(inputs.matrix().transpose(0, 2, 1))
    product = min_plus_each(turned, _outside_matrix(inputs, outside))
    return _turn_axes(product, (inputs.step.node, inputs.partner), inputs.pair.scope)
