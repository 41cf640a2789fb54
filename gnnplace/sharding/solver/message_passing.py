"""A lower bound for every configuration, and a good strategy, without large tables.

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
from numba import njit

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.tables import Flat, make_flat_tables

# Rounding may take as much from a bound, relative to the sum of all tables' maxima.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Bounds:
    """The results of message passing.

    Attributes:
        configuration: the best strategy met. [N]
        cost: The cost of that strategy.
        bound: no strategy costs less.
        node: no strategy with a node's configuration costs less. N arrays [K]
    """

    configuration: tuple[int, ...]
    cost: float
    bound: float
    node: tuple[FloatArray, ...]

    def meets(self, share: float) -> bool:
        """Return whether the bound is within that share of the strategy's cost."""
        return self.cost - self.bound <= share * abs(self.cost)

    def sharpen(self, later: Bounds, subsets: Sequence[LongArray]) -> Bounds:
        """Return these bounds with those of a subset of the configurations; the rest stay as they
        are.

        The rest are in no strategy better than that of ``self``, so a bound of the subset above it
        says no more than its cost.

        Args:
            later: Bounds of the problem that has the subset alone.
            subsets: Configurations of the subset. N arrays
        """
        configuration = tuple(
            int(rows[k]) for rows, k in zip(subsets, later.configuration, strict=True)
        )
        better = min((self.cost, self.configuration), (later.cost, configuration))
        return Bounds(
            configuration=better[1],
            cost=better[0],
            bound=max(self.bound, min(later.bound, self.cost)),
            node=self.node,
        )


def message_bounds(
    problem: ShardingProblem, sweeps: int, *, enough: float = 0.0
) -> Bounds:
    """Return bounds and the best strategy of ``sweeps`` sweeps forth and back.

    Args:
        problem: the cost tables of nodes and edges.
        sweeps: at most; at least one.
        enough: stops where cost and bound are this close, relative to the cost.
    """
    flat = make_flat_tables(problem)
    messages = np.zeros(int(flat.shape.sum()))
    best = np.zeros(0, np.int64)
    best_cost = np.inf
    bound = -np.inf
    node = np.zeros_like(flat.unary)
    current = np.zeros(len(problem.cost), np.int64)
    for _ in range(sweeps):
        bound = max(bound, sweep(flat, messages, node, current, True))
        sweep(flat, messages, node, current, False)
        improve(flat, current)
        cost = problem.value(tuple(current.tolist()))
        if cost < best_cost:
            best = current.copy()
            best_cost = cost
        if best_cost - bound <= enough * abs(best_cost):
            break
    bound -= _rounding(flat)
    node_bounds = [bound + part for part in np.split(node, flat.start[1:-1])]
    return Bounds(
        configuration=tuple(best.tolist()),
        cost=best_cost,
        bound=min(bound, best_cost),
        node=tuple(node_bounds),
    )


def _rounding(flat: Flat) -> float:
    """Return what rounding may take from a bound."""
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


@njit(cache=True)
def sweep(
    flat: Flat,
    messages: FloatArray,
    node_bound: FloatArray,
    strategy: LongArray,
    forth: bool,
) -> float:
    """Sweep over all nodes once; return a bound of every strategy.

    Args:
        flat: the tables as long arrays.
        messages: along both directions of each pair; those of the sweep's direction are renewed.
        node_bound: the sweep back writes how much more than its bound a strategy with each
            configuration costs at least. [as ``unary``]
        strategy: the sweep back writes a strategy. [N]
        forth: Whether nodes are visited in their order, or in reverse.

    Returns:
        A bound of every strategy.
    """
    count = len(flat.start) - 1
    bound = 0.0
    widest = (flat.start[1:] - flat.start[:-1]).max()
    total = np.empty(widest)
    part = np.empty(widest)
    for step in range(count):
        u = step if forth else count - 1 - step
        begin = flat.start[u]
        size = flat.start[u + 1] - flat.start[u]
        earlier, later = _collect(flat, messages, u, forth, total[:size])
        low = total[:size].min()
        bound += low
        total[:size] -= low
        if not forth:
            node_bound[begin : begin + size] = total[:size]
            strategy[u] = _choice(flat, messages, u, strategy, part[:size])
        share = 1.0 / max(1, earlier, later)
        for p in range(flat.first[u], flat.first[u + 1]):
            e = flat.incident[p]
            side = 0 if flat.ends[e, 0] == u else 1
            if (side == 0) == forth:
                bound += _send(flat, messages, e, side, share, total[:size], part)
    return bound


@njit(cache=True)
def _collect(
    flat: Flat, messages: FloatArray, unit: int, forth: bool, total: FloatArray
) -> tuple[int, int]:
    """Write a node's costs plus all messages to it; return the number of its earlier and later
    neighbours.
    """
    earlier = 0
    later = 0
    for k in range(len(total)):
        total[k] = flat.unary[flat.start[unit] + k]
    for p in range(flat.first[unit], flat.first[unit + 1]):
        e = flat.incident[p]
        side = 0 if flat.ends[e, 0] == unit else 1
        if (side == 0) == forth:
            later += 1
        else:
            earlier += 1
        place = flat.message[e, side]
        to_class = flat.lookup[e, side]
        for k in range(len(total)):
            total[k] += messages[place + flat.classes[to_class + k]]
    return earlier, later


@njit(cache=True)
def _choice(
    flat: Flat, messages: FloatArray, unit: int, strategy: LongArray, total: FloatArray
) -> int:
    """Return the best configuration beside the later nodes' and the messages of the earlier."""
    for k in range(len(total)):
        total[k] = flat.unary[flat.start[unit] + k]
    for p in range(flat.first[unit], flat.first[unit + 1]):
        e = flat.incident[p]
        if flat.ends[e, 0] == unit:
            _add_chosen(flat, e, 0, strategy, total)
            continue
        place = flat.message[e, 1]
        to_class = flat.lookup[e, 1]
        for k in range(len(total)):
            total[k] += messages[place + flat.classes[to_class + k]]
    return int(total.argmin())


@njit(cache=True)
def _add_chosen(
    flat: Flat, edge: int, side: int, strategy: LongArray, total: FloatArray
) -> None:
    """Add the cost of a pair, given the configuration of its second node."""
    other_end = flat.ends[edge, 1 - side]
    d = flat.classes[flat.lookup[edge, 1 - side] + strategy[other_end]]
    columns = flat.shape[edge, 1]
    to_class = flat.lookup[edge, side]
    for k in range(len(total)):
        c = flat.classes[to_class + k]
        total[k] += flat.cells[
            flat.table[edge] + (c * columns + d if side == 0 else d * columns + c)
        ]


@njit(cache=True)
def _send(
    flat: Flat,
    messages: FloatArray,
    edge: int,
    side: int,
    share: float,
    total: FloatArray,
    part: FloatArray,
) -> float:
    """Renew the message of a pair from the node on ``side``; return its least number, which is
    taken off.
    """
    rows = flat.shape[edge, 0]
    columns = flat.shape[edge, 1]
    place = flat.message[edge, side]
    to_class = flat.lookup[edge, side]
    num_classes = flat.shape[edge, side]
    part[:num_classes] = np.inf
    for k in range(len(total)):
        c = flat.classes[to_class + k]
        part[c] = min(part[c], share * total[k])
    part[:num_classes] -= messages[place : place + num_classes]
    first = flat.table[edge]
    cells = flat.cells[first : first + rows * columns].reshape(rows, columns)
    begin = flat.message[edge, 1 - side]
    out = messages[begin : begin + flat.shape[edge, 1 - side]]
    if side == 0:
        _find_column_minima(cells, part, out)
    else:
        _find_row_minima(cells, part, out)
    low = out.min()
    out -= low
    return low


@njit(cache=True, fastmath={"nnan", "ninf", "nsz"})
def _find_column_minima(cells: FloatArray, part: FloatArray, out: FloatArray) -> None:
    out[:] = np.inf
    for c in range(cells.shape[0]):
        addend = part[c]
        row = cells[c]
        for d in range(len(out)):
            out[d] = min(out[d], row[d] + addend)


@njit(cache=True, fastmath={"nnan", "ninf", "nsz"})
def _find_row_minima(cells: FloatArray, part: FloatArray, out: FloatArray) -> None:
    for d in range(len(out)):
        lowest = np.inf
        row = cells[d]
        for c in range(cells.shape[1]):
            lowest = min(lowest, row[c] + part[c])
        out[d] = lowest


@njit(cache=True)
def improve(flat: Flat, strategy: LongArray) -> None:
    """Take each node's best configuration beside the rest until none is better."""
    changed = True
    while changed:
        changed = False
        for u in range(len(flat.start) - 1):
            total = flat.unary[flat.start[u] : flat.start[u + 1]].copy()
            for p in range(flat.first[u], flat.first[u + 1]):
                e = flat.incident[p]
                _add_chosen(flat, e, 0 if flat.ends[e, 0] == u else 1, strategy, total)
            best = int(total.argmin())
            if total[best] < total[strategy[u]] - 1e-12 * abs(total[strategy[u]]):
                strategy[u] = best
                changed = True
