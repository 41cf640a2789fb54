"""The best contiguous split of one order of units: dynamic programming, then branch and bound.

Formulation. Units in an order are cut into stages, one a device. Devices with the same work, memory
and cheapest link are of one **sort** (``list_device_sorts``); ``s`` counts the devices of each sort
in use::

    best[s, j] = min over sorts t in s, i <= j of max(best[s - t, i], cost[t, i, j])
    cost[t, i, j] = work of units i..j-1 on t + what they receive and send, each flow sent once

(Tarnawski et al., 2020, with their linearisation; PipeDream's recurrence). ``cost`` is by
``segment_costs``, which adds one unit at a time; infinite where the state does not fit.

A flow whose readers are in several later stages is sent to each of them. The cost of a single stage
cannot know this, so ``best`` is a lower bound on contiguous splits of this order. ``descend`` then
chooses stages from the last to the first: there the later stages are known and all sends are
counted, and ``best`` is the bound on the stages that are left. On equal links its result, unless it
was stopped, is the best contiguous split of this order. On unequal links the devices of a sort are
taken as listed.
Complexity: O(B^2 T S) for B blocks (units, or runs of them in large graphs) and S states.

Orders are orders of blocks. ``precedence`` says which block precedes which: an op precedes its
readers. In a training graph a backward op follows its forward op, and the chain of backward ops
counts in reverse, so that a layer's backward work stays with the layer. Units on a cycle of these
relations are one block. O(U + edges) each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray, LongArray
from gnnplace.graph import (
    copy_to,
    empty_floats,
    empty_longs,
    empty_table,
    full_ints,
    kernel,
    zero_floats,
    zero_longs,
)
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placers.throughput.load import Flows, interval
from gnnplace.placers.throughput.stages import (
    Sorts,
    segment_costs,
    stage_costs,
    sum_own_load,
    true_largest,
)
from gnnplace.problem import BACKWARD
from gnnplace.simulation import with_messages

if TYPE_CHECKING:
    import networkx as nx

MOST_BLOCKS = 1_200
FEWEST_BLOCKS = 16  # that a large graph is cut into
MOST_STATES = 4_096
# The most steps of the recurrence; larger graphs are cut at fewer places.
MOST_WORK = 400_000_000
MOST_NODES, FEWEST_NODES = 200_000, 50  # Limits of the branch and bound, for each order
NODE_WORK = 20_000_000  # Units and flows that it may look at.


class Blocks(NamedTuple):
    """Units that cannot be told apart in order, in one topological order.

    Attributes:
        units: the units of each block. [B]
        before: blocks that directly precede each block. [B]
        after: blocks that directly follow. [B]
    """

    units: list[list[int]]
    predecessors: list[list[int]]
    successors: list[list[int]]


def precedence(space: SearchSpace) -> nx.DiGraph:
    """Return which unit precedes which, as the module's text says; it may have cycles."""
    import networkx as nx

    problem = space.problem
    source, target, _ = problem.graph.edges
    backward = problem.phase == BACKWARD
    flip = backward[source] & backward[target] & _is_folded(space)
    first = np.where(flip, target, source)
    second = np.where(flip, source, target)
    unit = problem.unit_of
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.num_units))
    both = np.stack([unit[first], unit[second]])
    pairs = np.unique(both, axis=1).T
    graph.add_edges_from((int(a), int(b)) for a, b in pairs if a != b)
    return graph


def _is_folded(space: SearchSpace) -> bool:
    """Return whether backward ops stay with their forward ops: some colocation class says so."""
    problem = space.problem
    backward = problem.phase == BACKWARD
    has = [
        np.bincount(problem.unit_of, part, problem.num_units) > 0
        for part in (backward, ~backward)
    ]
    return bool((has[0] & has[1]).any())


def make_blocks(space: SearchSpace) -> Blocks:
    """Return the strongly connected components of ``precedence``."""
    import networkx as nx

    components = nx.condensation(precedence(space))
    rank = {
        node: k
        for k, node in enumerate(nx.lexicographical_topological_sort(components))
    }
    units = [sorted(components.nodes[node]["members"]) for node in rank]
    predecessors = [
        sorted(rank[p] for p in components.predecessors(node)) for node in rank
    ]
    successors = [sorted(rank[p] for p in components.successors(node)) for node in rank]
    return Blocks(units, predecessors, successors)


def depth_first(blocks: Blocks, rng: np.random.Generator | None = None) -> IntArray:
    """Return a topological order of units that ends a branch before the next; drawn with ``rng``.
    [U]
    """
    missing = [len(blocks_before) for blocks_before in blocks.predecessors]
    ready = [b for b, number in enumerate(missing) if number == 0][::-1]
    order: list[int] = []
    while ready:
        if rng is None:
            block = ready.pop()
        else:
            block = ready.pop(int(rng.integers(len(ready))))
        order += blocks.units[block]
        for c in reversed(blocks.successors[block]):
            missing[c] -= 1
            if missing[c] == 0:
                ready.append(c)
    return np.array(order, dtype=np.int32)


class Split(NamedTuple):
    """A contiguous split.

    Attributes:
        device: device of each unit. [U]
        interval: seconds of its largest load.
        relaxed: seconds that no contiguous split of this order is below.
        proven: whether it is the best contiguous split of this order.
    """

    device: IntArray
    interval: float
    relaxed: float
    proven: bool


def split(
    flows: Flows, sorts: Sorts, order: IntArray, upper: float = np.inf
) -> Split | None:
    """Return the best contiguous split of ``order`` found; None if none is below ``upper``.

    Args:
        flows: the units, and what travels between them.
        sorts: the sorts of its devices.
        order: all units. [U]
        upper: seconds above which a split is of no interest.
    """
    strides = np.concatenate(([1], np.cumprod(sorts.counts + 1)))
    if strides[-1] > MOST_STATES:
        return None
    block = _cut_into_blocks(sorts, order, int(strides[-1]))
    cost = segment_costs(flows, sorts, order, block, upper)
    best = recurrence(cost, sorts.counts, strides[:-1].astype(np.int64))
    relaxed = float(best[-1, -1])
    if not np.isfinite(relaxed):
        return None
    max_nodes = int(
        np.clip(NODE_WORK // (len(order) + len(flows.reader)), FEWEST_NODES, MOST_NODES)
    )
    table = SplitTable(
        order=order,
        block=block,
        cost=cost,
        best=best,
        strides=strides[:-1].astype(np.int64),
    )
    stage, stage_sort, largest, nodes = descend(flows, sorts, table, upper, max_nodes)
    if largest == np.inf:
        return None
    device = _assign_devices(flows, sorts, stage, stage_sort)
    proven = nodes < max_nodes and sorts.equal and len(order) == block[-1] + 1
    return Split(
        device=device,
        interval=interval(flows, device),
        relaxed=relaxed,
        proven=proven,
    )


def _cut_into_blocks(sorts: Sorts, order: IntArray, states: int) -> IntArray:
    """Return the block of each position of the order, ascending from 0. [U]

    A block is one unit; if there are too many units, it is a run of them of about equal work.

    Args:
        sorts: The sorts of devices.
        order: The order of units. [U]
        states: The number of states of the recurrence.
    """
    num_units = len(order)
    steps_per_pair = states * len(sorts.counts)
    affordable = np.sqrt(MOST_WORK / steps_per_pair)
    max_blocks = int(min(MOST_BLOCKS, max(FEWEST_BLOCKS, affordable)))
    if num_units <= max_blocks:
        return np.arange(num_units, dtype=np.int32)

    # Half of a unit's weight is its work, half is one unit: blocks without work stay small too.
    finite_work = np.where(np.isfinite(sorts.work), sorts.work, 0.0)
    seconds = finite_work.mean(axis=1)[order]
    weight = np.cumsum(seconds + seconds.sum() / num_units)
    position = weight / weight[-1] * max_blocks
    block = np.minimum(position.astype(np.int64), max_blocks - 1)

    # Number the blocks that have units.
    _, number = np.unique(block, return_inverse=True)
    return number.astype(np.int32)


def _assign_devices(
    flows: Flows, sorts: Sorts, stage: IntArray, stage_sort: IntArray
) -> IntArray:
    """Return the device of each unit: the stages of a sort take its devices as listed, first to
    last.
    """
    free = [list(np.flatnonzero(sorts.of == t)) for t in range(len(sorts.counts))]
    device = np.zeros(len(stage), dtype=np.int32)
    # Stages are numbered from the last one on.
    for number in range(len(stage_sort) - 1, -1, -1):
        if stage_sort[number] >= 0:
            device[stage == number] = free[stage_sort[number]].pop(0)
    return device


@kernel
def recurrence(cost: FloatArray, counts: IntArray, strides: LongArray) -> FloatArray:
    """Return the least largest cost of the first j blocks on the devices of each state. [S,
    B + 1]
    """
    num_sorts = cost.shape[0]
    num_blocks = cost.shape[1] - 1
    states = 1
    for t in range(num_sorts):
        states *= counts[t] + 1
    best = np.full((states, num_blocks + 1), np.inf)
    best[:, 0] = 0.0
    for s in range(1, states):
        for t in range(num_sorts):
            if (s // strides[t]) % (counts[t] + 1) == 0:
                continue
            former = best[s - strides[t]]
            for i in range(num_blocks + 1):
                if former[i] == np.inf:
                    continue
                for j in range(i, num_blocks + 1):
                    value = max(former[i], cost[t, i, j])
                    if value < best[s, j]:
                        best[s, j] = value
    return best


class SplitTable(NamedTuple):
    """Tables for the search of a split into stages.

    Attributes:
        order: Units in their topological order. [U]
        block: Block of each place in ``order``. [U]
        cost: Seconds of blocks i to j - 1 as a stage on each sort of device. [sorts, B + 1, B + 1]
        best: The least largest cost of the first j blocks on the devices of each state. [S, B + 1]
        strides: What a device of each sort adds to the number of a state. [sorts]
    """

    order: IntArray
    block: IntArray
    cost: FloatArray
    best: FloatArray
    strides: LongArray


@kernel
def descend(
    flows: Flows,
    sorts: Sorts,
    table: SplitTable,
    upper: float,
    most: int,
) -> tuple[IntArray, IntArray, float, int]:
    """Search depth first over stages, the last one first; children by their bound, least first.

    Returns:
        Stage of each unit (0 is the last) [U], sort of each stage, -1 if unused [D], the largest
        load (inf if none is below ``upper``), and nodes visited, ``most`` if it was stopped.
    """
    order, block, cost, best, strides = table
    num_blocks = cost.shape[1] - 1
    num_devices = len(sorts.of)
    num_sorts = len(sorts.counts)
    found_stage = full_ints(len(order), -1)
    found_sort = full_ints(num_devices, -1)
    best_load = np.inf
    nodes = 0
    bound_to_beat = upper
    stage = full_ints(len(order), -1)
    stage_sort = full_ints(num_devices, -1)
    # A level's children: bound, first block, sort; the next to visit; what the level came with.
    width = num_blocks * num_sorts
    child_bound = empty_table(num_devices + 1, width)
    child = np.empty((num_devices + 1, width), np.int64)
    bounds, children = empty_floats(width), empty_longs(width)  # as they are listed
    amount = zero_longs(num_devices + 1)
    turn = zero_longs(num_devices + 1)
    end_of = zero_longs(num_devices + 1)
    state_of = zero_longs(num_devices + 1)
    value_of = zero_floats(num_devices + 1)
    level = 0
    fresh = True
    end_of[0], state_of[0], value_of[0] = num_blocks, best.shape[0] - 1, 0.0
    while level >= 0:
        # 1. A level that is entered lists its children: each first block and sort of a stage that
        # ends where the level does, with the largest load of this stage (sends to later stages are
        # known), of the later ones, and at least (``best``) of what is left.
        if fresh:
            nodes += 1
            if nodes >= most:
                break
            end = end_of[level]
            s = state_of[level]
            total = 0
            counts, sizes = stage_costs(flows, sorts, order, block, stage, end, level)
            for t in range(num_sorts):
                if (s // strides[t]) % (sorts.counts[t] + 1) == 0:
                    continue
                work = 0.0
                p = len(order) - 1
                while p >= 0 and block[p] >= end:
                    p -= 1
                for i in range(end - 1, -1, -1):
                    while p >= 0 and block[p] >= i:
                        work += sorts.work[order[p], t]
                        p -= 1
                    if work >= bound_to_beat:
                        break
                    if cost[t, i, end] == np.inf:
                        continue
                    load = with_messages(
                        work, counts[i], sizes[i], sorts.latency[t], sorts.pace[t]
                    )
                    value = max(load, value_of[level], best[s - strides[t], i])
                    if value < bound_to_beat:
                        bounds[total] = value
                        children[total] = i * num_sorts + t
                        total += 1
            ranked = np.argsort(bounds[:total])
            for c in range(total):
                child_bound[level, c] = bounds[ranked[c]]
                child[level, c] = children[ranked[c]]
            amount[level] = total
            turn[level] = 0
            fresh = False
        # The stage of this level is given back before its next child.
        for u in range(len(order)):
            if stage[u] >= level:
                stage[u] = -1
        for later in range(level, num_devices):
            stage_sort[later] = -1
        # 2. Its next child, or back to the level above where none can be better.
        k = turn[level]
        if k >= amount[level] or child_bound[level, k] >= bound_to_beat:
            level -= 1
            continue
        turn[level] += 1
        i = child[level, k] // num_sorts
        t = child[level, k] % num_sorts
        for p in range(len(order)):
            if i <= block[p] < end_of[level]:
                stage[order[p]] = level
        stage_sort[level] = t
        # 3. A whole split is priced truly; a part of one goes a level deeper.
        if i == 0:
            value = true_largest(flows, sorts, stage, stage_sort)
            if value < bound_to_beat:
                bound_to_beat = value
                best_load = value
                copy_to(found_stage, stage)
                copy_to(found_sort, stage_sort)
        elif level + 1 < num_devices:
            end_of[level + 1] = i
            state_of[level + 1] = state_of[level] - strides[t]
            value_of[level + 1] = max(
                value_of[level], sum_own_load(flows, sorts, stage, level, t)
            )
            level = level + 1
            fresh = True
    return found_stage, found_sort, best_load, nodes
