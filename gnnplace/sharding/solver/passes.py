"""Computes lower bounds on the strategies that use a cell of an elimination's tables.

An elimination is a tree of steps (`tree`). Each step adds up its tables, which are factors and the
tables of its children, and minimises over its node. For one weighted cost and a cell of a step's
table, ``inside`` is the least cost of the step and everything below it, and ``outside`` the least
cost of everything else. Their sum bounds every strategy that uses the cell. These are the two
passes of bucket-tree elimination (Kask, Dechter, Larrosa, Dechter, 2005, "Unifying tree
decompositions for reasoning in graphical models").

Often one table of a step is over the step's node v and a partner w that no other table has. Let
B[v, w] be this table, A[rest, v] the sum of the others and O[rest, w] the outside of the step's
table. Then no table over all nodes is needed; everything is a min-plus product:

    inside = A B      outside of a table in A = (O B' + A minimised over the rest) - the table
    outside of B = A' O

Complexity: time of the largest min-plus product, times steps and weighted costs.
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

WEIGHING = -1
"""The axis of weighings, among axes that are numbers of nodes."""
BATCH = 2_000_000
"""Cells of the largest sum over all weighings that are computed together, at most."""


@dataclass(frozen=True, eq=False)
class Passes:
    """The least weighted costs of parts of strategies, for W weighings.

    Attributes:
        inside: For each step, the least cost of the step and all below it, by the cells of its
            table. [W, K of scope]
        outside: For each step, the least cost of everything else, by the cells of its table. [W, K
            of scope]
        node: For each node, the least cost of a complete strategy with each of its configurations.
            [W, K]
    """

    inside: tuple[FloatArray, ...]
    outside: tuple[FloatArray, ...]
    node: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class _Part:
    """One table that a step adds up.

    Attributes:
        scope: Nodes of the table's axes, after that of weighings.
        table: The table. [W, K of scope]
        child: The step that made the table; -1 for a factor.
    """

    scope: Scope
    table: FloatArray
    child: int


@dataclass(frozen=True, eq=False)
class _Inputs:
    """The tables that one step of the elimination adds up.

    Attributes:
        step: The step.
        axes: Nodes of ``total``: those of the step's table without ``partner``, then the step's
            node.
        total: The sum of ``parts``. [W, axes]
        parts: The tables of the step, without ``pair``.
        pair: A table over the step's node and ``partner``, the latter in no other table; None if
            there is no such table.
        partner: The second node of ``pair``; `WEIGHING` if there is no pair.
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
        """Return the sum with the axes of all other nodes joined. [W, rest, K of the node]"""
        return self.total.reshape(len(self.total), -1, self.last)

    def pair_matrix(self) -> FloatArray:
        """Return the pair's table, the step's node first. [W, K of the node, K of partner]"""
        assert self.pair is not None
        assert self.step.node is not None
        axes = (WEIGHING, self.step.node, self.partner)
        return np.ascontiguousarray(
            spread(self.pair.table, (WEIGHING, *self.pair.scope), axes)
        )


def weights_at_once(steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """Return how many weighings to compute together.

    For small tables the overhead of calls dominates, so that many weighings cost as much as one.

    Args:
        steps: The elimination's steps.
        sizes: Configurations of each node.
    """
    largest = max(math.prod(sizes[node] for node in step.axes) for step in steps)
    return max(1, BATCH // largest)


def two_passes(
    steps: Sequence[Step], factors: Factors, weights: Sequence[tuple[float, float]]
) -> Passes:
    """Return inside and outside costs of every cell, for several weighted costs.

    Args:
        steps: The elimination's steps, children before their parents; the last one is the root.
        factors: The tables of nodes and edges.
        weights: For each weighing, the weight of cost and that of memory. [W]

    Raises:
        TableTooLargeError: If a sum would have more cells than the limit.
    """
    tables = factors.weighted(weights)
    # Upwards: a step's inside needs those of its children.
    inside: list[FloatArray] = []
    for step in steps:
        inputs = _add_inputs(step, steps, factors, tables, inside)
        inside.append(_eliminate(inputs))
    # Downwards: the outsides of a step's children need that of the step. Nothing is outside of the
    # root. The sums are computed again, since keeping them all takes too much memory.
    outside = [np.zeros(0)] * len(steps)
    node = [np.zeros(0)] * len(factors.sizes)
    outside[-1] = np.zeros(len(weights))
    for index in range(len(steps) - 1, -1, -1):
        inputs = _add_inputs(steps[index], steps, factors, tables, inside)
        least_costs = _find_least_costs(inputs, outside[index])
        eliminated = steps[index].node
        if eliminated is not None:
            other_axes = tuple(range(1, least_costs.ndim - 1))
            node[eliminated] = least_costs.min(axis=other_axes)
        for part in inputs.parts:
            if part.child >= 0:
                with_part = _find_costs_with(inputs, part, least_costs)
                outside[part.child] = with_part - part.table
        if inputs.pair is not None and inputs.pair.child >= 0:
            outside[inputs.pair.child] = _find_costs_around_pair(inputs, outside[index])
    return Passes(inside=tuple(inside), outside=tuple(outside), node=tuple(node))


def _add_inputs(
    step: Step,
    steps: Sequence[Step],
    factors: Factors,
    tables: Sequence[FloatArray],
    inside: Sequence[FloatArray],
) -> _Inputs:
    """Return a step's tables, added up except the pair.

    Args:
        step: The step.
        steps: All steps.
        factors: The tables' scopes and the nodes' sizes.
        tables: The weighted table of each factor. [W, K of scope]
        inside: The table of each earlier step. [W, K of scope]

    Raises:
        TableTooLargeError: If the sum or the step's table would have more cells than the limit.
    """
    parts = [
        _Part(scope=factors.scopes[k], table=tables[k], child=-1) for k in step.factors
    ]
    parts += [
        _Part(scope=steps[k].scope, table=inside[k], child=k) for k in step.children
    ]
    pair = _find_pair(step, parts)
    partner = WEIGHING
    axes = step.axes
    if pair is not None:
        partner = _get_partner(step, pair)
        parts = [part for part in parts if part is not pair]
        axes = tuple(k for k in axes if k != partner)
    num_weighings = len(tables[0])
    total = add_up(
        (WEIGHING, *axes),
        [part.table for part in parts],
        [(WEIGHING, *part.scope) for part in parts],
        [num_weighings, *(factors.sizes[k] for k in axes)],
    )
    check_cells([num_weighings, *(factors.sizes[k] for k in step.scope)])
    return _Inputs(
        step=step, axes=axes, total=total, parts=parts, pair=pair, partner=partner
    )


def _get_partner(step: Step, pair: _Part) -> int:
    """Return the node of a table over two nodes that is not the step's."""
    first, second = pair.scope
    if first == step.node:
        return second
    return first


def _find_pair(step: Step, parts: list[_Part]) -> _Part | None:
    """Return the largest table over two nodes whose partner is in no other table, or None."""
    if step.node is None or len(parts) < 2:
        return None
    num_tables = Counter(node for part in parts for node in part.scope)
    pairs = []
    for part in parts:
        if len(part.scope) == 2 and num_tables[_get_partner(step, part)] == 1:
            pairs.append(part)
    return max(pairs, key=lambda part: part.table.size, default=None)


def _eliminate(inputs: _Inputs) -> FloatArray:
    """Return the step's table: the sum of its tables, minimised over its node. [W, K of scope]"""
    if inputs.step.node is None:
        return inputs.total
    if inputs.pair is None:
        return inputs.total.min(axis=-1)
    product = min_plus_each(inputs.matrix(), inputs.pair_matrix())
    table = product.reshape([*inputs.total.shape[:-1], product.shape[2]])
    axes = (*inputs.axes[:-1], inputs.partner)
    return _transpose(table, axes, inputs.step.scope)


def _transpose(table: FloatArray, axes: Scope, scope: Scope) -> FloatArray:
    """Return a table with its axes in another order, weighings first.

    Args:
        table: The table. [W, axes]
        axes: Nodes of the table's axes.
        scope: The same nodes in the new order.
    """
    order = [0, *(1 + axes.index(node) for node in scope)]
    return np.ascontiguousarray(table.transpose(order))


def _find_least_costs(inputs: _Inputs, outside: FloatArray) -> FloatArray:
    """Return the least cost of a strategy that uses each cell of the sum. [W, axes]

    Args:
        inputs: The tables of the step.
        outside: The outside of the step's table. [W, K of scope]
    """
    if inputs.step.node is None:
        return inputs.total + outside
    if inputs.pair is None:
        return inputs.total + outside[..., None]
    transposed = np.ascontiguousarray(inputs.pair_matrix().transpose(0, 2, 1))
    costs = min_plus_each(_make_outside_matrix(inputs, outside), transposed)
    return inputs.total + costs.reshape(inputs.total.shape)


def _make_outside_matrix(inputs: _Inputs, outside: FloatArray) -> FloatArray:
    """Return the outside of the step's table, ``partner`` last. [W, rest, K of partner]"""
    axes = (*inputs.axes[:-1], inputs.partner)
    transposed = _transpose(outside, inputs.step.scope, axes)
    return transposed.reshape(len(transposed), -1, transposed.shape[-1])


def _find_costs_with(
    inputs: _Inputs, part: _Part, least_costs: FloatArray
) -> FloatArray:
    """Return the least cost of a strategy that uses each cell of a table. [W, K of its scope]

    Args:
        inputs: The tables of the step.
        part: One of them.
        least_costs: The least cost with each cell of the sum. [W, axes]
    """
    absent = tuple(
        k for k, node in enumerate(inputs.axes, start=1) if node not in part.scope
    )
    present = tuple(node for node in inputs.axes if node in part.scope)
    minimum = least_costs.min(axis=absent)
    return spread(minimum, (WEIGHING, *present), (WEIGHING, *part.scope))


def _find_costs_around_pair(inputs: _Inputs, outside: FloatArray) -> FloatArray:
    """Return the least cost of all but the pair, for each of its cells. [W, K of its scope]

    Args:
        inputs: The tables of the step.
        outside: The outside of the step's table. [W, K of scope]
    """
    assert inputs.pair is not None
    assert inputs.step.node is not None
    transposed = np.ascontiguousarray(inputs.matrix().transpose(0, 2, 1))
    product = min_plus_each(transposed, _make_outside_matrix(inputs, outside))
    axes = (inputs.step.node, inputs.partner)
    return _transpose(product, axes, inputs.pair.scope)
