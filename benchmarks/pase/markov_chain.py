"""Random search: the Markov chain of FlexFlow (Jia et al., 2018, arXiv 1807.05358, section 6).

A proposal is a random configuration of a random layer; it is accepted if better, else with
probability exp(-beta * increase). Compiled; only the tables around the layer are looked at, so that
a proposal takes O(neighbours of the layer).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
from numba import njit

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.tables import Flat, make_flat_tables

TEMPERATURE = (
    2e-3  # Of the start's cost: an increase by this much is accepted in one of e cases.
)
AT_ONCE = 50_000  # Proposals drawn together; some milliseconds.


def random_search(
    problem: ShardingProblem,
    start: Sequence[int],
    *,
    seed: int,
    proposals: int,
    seconds: float = math.inf,
) -> tuple[int, ...]:
    """Return the best strategy that the chain meets.

    Args:
        problem: the cost tables of nodes and edges.
        start: where it begins; FlexFlow takes data parallelism.
        seed: the seed of the proposals.
        proposals: to make at most.
        seconds: the seconds of the processor, after which none is begun; what the chain meets then
            depends on the machine.
    """
    until = time.process_time() + seconds
    rng = np.random.default_rng(seed)
    flat = make_flat_tables(problem)
    current = np.array(start, np.int64)
    beta = 1.0 / (TEMPERATURE * max(problem.value(tuple(start)), 1e-300))
    best = current.copy()
    below = 0.0
    num_proposals = 0
    while num_proposals < proposals and time.process_time() < until:
        count = min(AT_ONCE, proposals - num_proposals)
        below = _walk(flat, current, best, below, beta, rng.random((count, 3)))
        num_proposals += count
    return tuple(best.tolist())


@njit(cache=True)
def _walk(
    flat: Flat,
    current: LongArray,
    best: LongArray,
    below: float,
    beta: float,
    drawn: FloatArray,
) -> float:
    """Make proposals; ``below`` is the current cost over the best one's, and is returned anew."""
    count = len(current)
    for row in range(len(drawn)):
        u = int(drawn[row, 0] * count)
        k = int(drawn[row, 1] * (flat.start[u + 1] - flat.start[u]))
        increase = _change(flat, current, u, k)
        if increase <= 0 or drawn[row, 2] < math.exp(-beta * increase):
            current[u] = k
            below += increase
            if below < 0:
                below = 0.0
                best[:] = current
    return below


@njit(cache=True)
def _change(flat: Flat, current: LongArray, node: int, option: int) -> float:
    """Return by how much the cost grows if node ``node`` takes configuration ``option``."""
    old = current[node]
    begin = flat.start[node]
    total = flat.unary[begin + option] - flat.unary[begin + old]
    for p in range(flat.first[node], flat.first[node + 1]):
        e = flat.incident[p]
        side = 0 if flat.ends[e, 0] == node else 1
        partner = flat.ends[e, 1 - side]
        # Rows of the pair's table are classes of its first node, columns of its second.
        partner_class = flat.classes[flat.lookup[e, 1 - side] + current[partner]]
        new_class = flat.classes[flat.lookup[e, side] + option]
        old_class = flat.classes[flat.lookup[e, side] + old]
        columns = flat.shape[e, 1]
        if side == 0:
            new_cell = new_class * columns + partner_class
            old_cell = old_class * columns + partner_class
        else:
            new_cell = partner_class * columns + new_class
            old_cell = partner_class * columns + old_class
        base = flat.table[e]
        total += flat.cells[base + new_cell] - flat.cells[base + old_cell]
    return total
