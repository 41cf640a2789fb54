"""Which ops of a unit come before which others of it, by any path of the graph.

Sets of 64 ops at a time, as the bits of one word, are pushed through the whole graph: O(n / 64)
sweeps of O(edges). Only ops of units of several ops have a bit, and only as many as ``MOST_STEPS``
lets: of a graph of 100,000 ops some, those of the largest units that are not too large.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.graph.jit import kernel
from gnnplace.graph.kernel_arrays import empty_ints
from gnnplace.simulation.bounds.copies import Copies, offsets

MOST_PAIRS = 4_000_000  # Of ops of one unit, all units together: 32 MB.
MOST_STEPS = 60_000_000  # ops and edges that all sweeps together may pass: 0.2 s
BITS = 63


def ancestors(copies: Copies, unit: IntArray) -> tuple[IntArray, IntArray]:
    """Ancestors of each group of copies in its own unit: offsets and a list. [G + 1]

    Only along edges that feed every copy. Units are left out, the largest first, where there are
    too many pairs, and then the smallest first, where there are too many ops and edges.

    Args:
        copies: the copies.
        unit: the unit of each group. [G]
    """
    members = np.bincount(unit)
    pairs = members.astype(np.int64) * (members - 1) // 2
    by_size = np.argsort(pairs, kind="stable")
    kept = np.zeros(len(members), dtype=bool)
    kept[by_size] = (pairs[by_size].cumsum() <= MOST_PAIRS) & (members[by_size] > 1)
    full = copies.full
    sweeps = MOST_STEPS // (len(unit) + int(full.sum()) + 1)
    largest = by_size[::-1][kept[by_size[::-1]]]
    kept[largest[members[largest].cumsum() > BITS * sweeps]] = False
    most = int(pairs[kept].sum())
    if most == 0:
        return np.zeros(len(unit) + 1, dtype=np.int32), np.zeros(0, dtype=np.int32)
    inside = np.flatnonzero(kept[unit])
    bit = inside[np.argsort(unit[inside], kind="stable")].astype(np.int32)
    edges = offsets(copies.target[full], len(unit)), copies.source[full]
    later, earlier = _pairs(copies.order, *edges, unit, offsets(unit[bit], len(members)), bit, most)
    return offsets(later, len(unit)), earlier[np.argsort(later, kind="stable")]


def turned(relation: tuple[IntArray, IntArray]) -> tuple[IntArray, IntArray]:
    """The relation the other way round: descendants, of ancestors."""
    offset, earlier = relation
    later = np.repeat(np.arange(len(offset) - 1, dtype=np.int32), np.diff(offset))
    return offsets(earlier, len(offset) - 1), later[np.argsort(earlier, kind="stable")]


@kernel
def _pairs(
    order: IntArray,
    offset: IntArray,
    source: IntArray,
    unit: IntArray,
    bit_offset: IntArray,
    bit: IntArray,
    most: int,
) -> tuple[IntArray, IntArray]:
    """Pairs of groups of one unit, one of them after the other; the later and the earlier.

    Args:
        order: groups, producers first. [G]
        offset: where the edges into each group start. [G + 1]
        source: where they come from.
        unit: the unit of each group. [G]
        bit_offset: where the groups of each unit start in ``bit``. [U + 1]
        bit: groups of units of several groups, by unit.
        most: pairs to make room for.
    """
    later, earlier, count = empty_ints(most), empty_ints(most), 0
    before = np.zeros(len(order), np.int64)
    mine = np.zeros(len(order), np.int64)
    for low in range(0, len(bit), BITS):
        high = min(low + BITS, len(bit))
        for i in range(low, high):
            mine[bit[i]] = 1 << (i - low)
        for x in order:
            reached = 0
            for e in range(offset[x], offset[x + 1]):
                reached |= before[source[e]] | mine[source[e]]
            before[x] = reached
            if reached != 0 and bit_offset[unit[x] + 1] > bit_offset[unit[x]]:
                first, last = max(low, bit_offset[unit[x]]), min(high, bit_offset[unit[x] + 1])
                for i in range(first, last):
                    if reached >> (i - low) & 1:
                        later[count], earlier[count] = x, bit[i]
                        count += 1
        for i in range(low, high):
            mine[bit[i]] = 0
    return later[:count], earlier[:count]
