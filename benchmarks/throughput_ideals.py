"""The best contiguous split of a whole graph: dynamic programming over its ideals.

Formulation (Tarnawski et al., NeurIPS 2020, section 4). An ideal is a set of blocks with all their
predecessors; a contiguous split is a chain of ideals, a stage the difference of two of them::

    best[s, J] = min over sorts t in s, ideals I within J of max(best[s - t, I], cost[t, J - I])

with states ``s`` and sorts ``t`` as in ``placers.throughput.split``; a flow that is sent to
several stages counts once, so the value is a lower bound on all contiguous splits, and the best of
them where the split's own interval equals it (``IdealSplit.order`` says which split that is).

Complexity: O(P T S) for P pairs of nested ideals, up to the square of their number, which may be
exponential in the graph's width: ``ideals_of`` gives up above a limit, and ``search`` above a
number of pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.jit import kernel
from gnnplace.placers.throughput.load import Flows
from gnnplace.placers.throughput.split import Blocks
from gnnplace.placers.throughput.stages import Sorts, add_unit

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]


class Ideals(NamedTuple):
    """Ideals by size, and what each grows into.

    Attributes:
        offset: where each ideal's growths start. [N + 1]
        block: the block that a growth adds.
        into: the ideal that it makes.
    """

    offset: IntArray
    block: IntArray
    into: IntArray


class IdealSplit(NamedTuple):
    """What the programme found.

    Attributes:
        relaxed: seconds that no contiguous split is below.
        order: units by stage. [U]
    """

    relaxed: float
    order: IntArray


def ideals_of(blocks: Blocks, most: int) -> Ideals | None:
    """All ideals; None if there are more than ``most``."""
    needs = [sum(1 << b for b in before) for before in blocks.predecessors]
    index, listed, growths = (
        {0: 0},
        [(0, frozenset(b for b, n in enumerate(needs) if n == 0))],
        [],
    )
    for ideal, ready in listed:
        grown = []
        for b in sorted(ready):
            bigger = ideal | 1 << b
            if bigger not in index:
                index[bigger] = len(index)
                fresh = {c for c in blocks.successors[b] if needs[c] & ~bigger == 0}
                listed.append((bigger, (ready - {b}) | fresh))
            grown.append((b, index[bigger]))
        growths.append(grown)
        if len(index) > most:
            return None
    flat = [pair for grown in growths for pair in grown]
    offset = np.concatenate(([0], np.cumsum([len(grown) for grown in growths])))
    return Ideals(
        offset.astype(np.int32),
        np.array([b for b, _ in flat], dtype=np.int32),
        np.array([j for _, j in flat], dtype=np.int32),
    )


def split_ideals(
    flows: Flows,
    sorts: Sorts,
    blocks: Blocks,
    ideals: Ideals,
    upper: float,
    most_pairs: int,
) -> IdealSplit | None:
    """The least relaxed interval of all contiguous splits.

    Args:
        flows: the flows.
        sorts: the sorts of the devices.
        blocks: the blocks of the graph.
        ideals: the ideals of the blocks.
        upper: the interval of some split: stages above it are of no interest.
        most_pairs: nested pairs of ideals to look at.

    Returns:
        None if there are more pairs, or no split is at or below ``upper``.
    """
    strides = np.concatenate(([1], np.cumprod(sorts.counts + 1))).astype(np.int64)
    offset = np.concatenate(([0], np.cumsum([len(u) for u in blocks.units]))).astype(
        np.int32
    )
    units = np.array([u for part in blocks.units for u in part], dtype=np.int32)
    best, came, complete = search(
        flows, sorts, offset, units, *ideals, strides, upper * (1 + 1e-12), most_pairs
    )
    if not complete or not np.isfinite(best[-1, -1]):
        return None
    order = _order_of(best, came, sorts, strides, blocks, ideals)
    return IdealSplit(float(best[-1, -1]), order)


def _order_of(
    best: FloatArray,
    came: NDArray[np.int64],
    sorts: Sorts,
    strides: NDArray[np.int64],
    blocks: Blocks,
    ideals: Ideals,
) -> IntArray:
    """Units by stage, following back where the best value came from."""
    members = _members(ideals, len(blocks.units))
    num_sorts = len(sorts.counts)
    s, j = best.shape[0] - 1, best.shape[1] - 1
    stages: list[list[int]] = []
    while j > 0:
        i, t = divmod(int(came[s, j]), num_sorts)
        stages.append(
            [b for b in range(len(blocks.units)) if (members[j] & ~members[i]) >> b & 1]
        )
        s, j = s - int(strides[t]), i
    return np.array(
        [u for stage in reversed(stages) for b in stage for u in blocks.units[b]],
        dtype=np.int32,
    )


def _members(ideals: Ideals, num_blocks: int) -> list[int]:
    """Each ideal as a set of bits."""
    members = [0] * (len(ideals.offset) - 1)
    for i in range(len(members)):
        for k in range(ideals.offset[i], ideals.offset[i + 1]):
            members[ideals.into[k]] = members[i] | 1 << int(ideals.block[k])
    return members


@kernel
def search(
    flows: Flows,
    sorts: Sorts,
    unit_offset: IntArray,
    units: IntArray,
    offset: IntArray,
    block: IntArray,
    into: IntArray,
    strides: NDArray[np.int64],
    upper: float,
    most_pairs: int,
) -> tuple[FloatArray, NDArray[np.int64], bool]:
    """The recurrence, from each ideal over all it lies in, depth first, a block at a time.

    Returns:
        The least largest cost of each state and ideal [S, N]; the ideal and sort it came from, as
        ideal * T + sort [S, N]; and whether ``most_pairs`` sufficed.
    """
    num_ideals, num_sorts = len(offset) - 1, len(sorts.counts)
    states, pairs = strides[num_sorts], 0
    best = np.full((states, num_ideals), np.inf)
    came = np.zeros((states, num_ideals), np.int64)
    best[:, 0] = 0.0
    made = np.zeros(len(flows.producer), np.bool_)
    read = np.zeros(len(flows.producer), np.int32)
    seen = np.full(num_ideals, -1, np.int64)
    path = np.empty(len(unit_offset), np.int64)
    added = np.empty(len(unit_offset), np.int64)
    where = np.empty(len(unit_offset), np.int64)
    # Sums of a stage at each depth: tensors and bytes that cross, state; work on each sort.
    sums = np.zeros((len(unit_offset) + 1, 3))
    work = np.zeros((len(unit_offset) + 1, num_sorts))
    for i in range(num_ideals):
        for s in range(states):
            for t in range(num_sorts):
                free = (s // strides[t]) % (sorts.counts[t] + 1) > 0
                if free and best[s - strides[t], i] < best[s, i]:
                    best[s, i] = best[s - strides[t], i]
                    came[s, i] = i * num_sorts + t
        if best[states - 1, i] > upper:
            continue
        depth = 0
        path[0], where[0] = offset[i], i
        while depth >= 0:
            k = path[depth]
            if k >= offset[where[depth] + 1]:
                depth -= 1
                if depth >= 0:
                    for q in range(
                        unit_offset[added[depth]], unit_offset[added[depth] + 1]
                    ):
                        add_unit(flows, units[q], -1, made, read)
                continue
            path[depth] += 1
            j = into[k]
            if seen[j] == i:
                continue
            seen[j] = i
            pairs += 1
            if pairs > most_pairs:
                return best, came, False
            first, last = unit_offset[block[k]], unit_offset[block[k] + 1]
            work[depth + 1] = work[depth]
            for q in range(first, last):
                work[depth + 1] += sorts.work[units[q]]
            if work[depth + 1].min() > upper:
                continue
            sums[depth + 1] = sums[depth]
            for q in range(first, last):
                count, size = add_unit(flows, units[q], 1, made, read)
                sums[depth + 1, 0] += count
                sums[depth + 1, 1] += size
                sums[depth + 1, 2] += flows.state[units[q]]
            added[depth] = block[k]
            depth += 1
            path[depth], where[depth] = offset[j], j
            for t in range(num_sorts):
                cross = (
                    sums[depth, 0] * sorts.latency[t] + sums[depth, 1] * sorts.pace[t]
                )
                seconds = work[depth, t] + cross
                if seconds > upper or sums[depth, 2] > sorts.memory[t]:
                    continue
                for s in range(states):
                    if (s // strides[t]) % (sorts.counts[t] + 1) > 0:
                        value = max(best[s - strides[t], i], seconds)
                        if value < best[s, j]:
                            best[s, j] = value
                            came[s, j] = i * num_sorts + t
    return best, came, True
