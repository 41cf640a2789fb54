"""Coarsening: groups of ops that are placed and run as one, never making a cycle.

The lightest group is merged first, into the neighbour where that delays others least:
merging a before b delays the other successors of a by the cost of b, and b's own start waits for
b's other predecessors while a could have run. `loss = cost(b) [a has other successors] +
cost(a) [b has other predecessors]`. Chains merge at no loss; unlike the rule "only into an only
neighbour" the grids of unrolled recurrent networks shrink too. A merge that would close a cycle
is refused: an order of the groups is kept (Pearce and Kelly, "A dynamic topological sort
algorithm", JEA 2006) and only the window between both groups is searched.

A group has one phase. Ops of a unit share a device; two units merge into one only while the cost
of the unit stays under a cap. Caps on the cost of a group and on the loss of a merge begin low and
double until the wished number of groups is reached; the cap of a unit, that of a few groups,
follows late, for what is united can't be placed apart.
Complexity: O(rounds * (ops * window + edges)). Deterministic; ties go to the smaller index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import InputError
from gnnplace.graph.computation_graph import ComputationGraph
from gnnplace.graph.contraction import Contraction

ROUNDS = 24
FIRST_CAP = 0.25  # of the mean cost of a wished group
RIDERS = 1.3  # of its costliest op's cost: a group of one costly op and light ones
UNITING = 1 / 64  # of the cap: the most loss at which two units are united; tuned on the zoo
UNIT_GROUPS = 4.0  # a unit should be worth so many groups: forward, backward, update


def coarsen(
    graph: ComputationGraph,
    cost: FloatArray,
    *,
    target: int = 200,
    unit: Sequence[str | None] | None = None,
    phase: NDArray[np.integer[Any]] | None = None,
    attach: IntArray | None = None,
) -> IntArray:
    """Group the ops of a graph.

    Args:
        graph: What to coarsen.
        cost: Estimated seconds of each op; from structure alone, so that the groups are those of
            every capture of the model. [num_ops]
        target: Groups to aim at; more remain where merging would cost too much or make a cycle.
        unit: Class of ops that share a device, or None. [num_ops]
        phase: Ops of different phases stay in different groups. [num_ops]
        attach: Op that an op should never be parted from, -1 if none; followed where no cycle
            and no other phase forbids it. [num_ops]

    Returns:
        Group of each op, numbered in one topological order of the groups. [num_ops]

    Raises:
        InputError: a target below 1 or arrays of the wrong length.
    """
    n = graph.num_ops
    if target < 1:
        raise InputError(f"coarsening: target is {target}; give at least 1")
    for what, array in (("cost", cost), ("unit", unit), ("phase", phase), ("attach", attach)):
        if array is not None and len(array) != n:
            raise InputError(f"coarsening: {what} has {len(array)} entries, not {n}")
    groups = Contraction(graph, cost, unit or (None,) * n, _or_zero(phase, n))
    _attach(groups, attach)
    _shrink(groups, target, float(np.sum(cost)))
    return groups.numbered()


def _or_zero(phase: NDArray[np.integer[Any]] | None, n: int) -> NDArray[np.integer[Any]]:
    return np.zeros(n, dtype=np.int8) if phase is None else phase


def _attach(groups: Contraction, attach: IntArray | None) -> None:
    for op, other in enumerate([] if attach is None else attach.tolist()):
        a, b = groups.find(op), groups.find(other) if other >= 0 else -1
        if b >= 0 and a != b and groups.compatible(a, b):
            groups.merge(*groups.ordered(a, b))


def _shrink(groups: Contraction, target: int, total: float) -> None:
    mean = total / target
    cap = FIRST_CAP * mean
    for _ in range(ROUNDS):
        groups.merge_ends()
        unit_cap = max(UNIT_GROUPS * mean, cap / 2)
        while groups.count > target and _sweep(groups, target, cap, unit_cap):
            groups.merge_ends()
        if groups.count <= target:
            return
        cap *= 2


def _sweep(groups: Contraction, target: int, cap: float, unit_cap: float) -> bool:
    """Merge each group once at most, the lightest first; whether anything was merged."""
    merged = False
    for group in sorted(groups.alive(), key=lambda g: (groups.cost[g], g)):
        if groups.count <= target:
            return False
        if groups.is_alive(group) and groups.cost[group] <= cap:
            merged |= _merge_best(groups, group, cap, unit_cap)
    return merged


def _merge_best(groups: Contraction, group: int, cap: float, unit_cap: float) -> bool:
    """Merge a group into the neighbour where that delays others least."""
    options = []
    for a, b in groups.edges_of(group):
        other = a if b == group else b
        loss = groups.loss(a, b)
        if _worth(groups, group, other, loss, cap):
            options.append((loss, not _same(groups, group, other), groups.cost[other], other, a, b))
    for *_, other, a, b in sorted(options):
        if groups.compatible(group, other, unit_cap) and groups.merge(a, b):
            return True
    return False


def _worth(groups: Contraction, group: int, other: int, loss: float, cap: float) -> bool:
    """Whether loss and cost stay low; what is light beside a costly op may always join it."""
    most = 2 * cap
    if loss > (cap / 2 if _same(groups, group, other) else cap * UNITING):
        return False
    peak = max(groups.peak[group], groups.peak[other])
    return groups.cost[group] + groups.cost[other] <= max(most, RIDERS * peak)


def _same(groups: Contraction, first: int, second: int) -> bool:
    """Whether no two units would be united."""
    x, y = groups.unit[first], groups.unit[second]
    return x is None or y is None or x == y
