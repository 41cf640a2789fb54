"""Narrow groups: a training graph cut where few bytes cross, and kinds of work in each segment.

**Segments.** Units (ops that share a device) are a line, in the order of their coordinates.
`cut_line` cuts the line into at most S runs. It minimises

    sum over runs of (work / mean work)^2 + sum over cuts of CROSSING * bytes / narrow

by dynamic programming. Only some places may be cut, the candidates: the line is divided into
``CANDIDATES`` S bins of equal work, and each bin has one, where the fewest bytes cross. ``narrow``
is the lower quartile of these bytes.

**Groups.** A group is (segment, kind, micro-batch). The kinds are forward, activation gradient,
weight gradient and update. A weight gradient is a backward op from which no path leads to another
segment's backward ops (``find_leading_elsewhere``): only the update waits for it.

**Cycles.** ``split_cycles`` splits groups that are on a cycle by the depth of their ops. The depth
is the largest number of changes of group on a path to the op inside the strongly connected
component. An edge leads to a greater depth or stays in its group, so that no cycle is left.

Costs are an argument. Estimated costs give the same groups for every capture of a model.

The dynamic programme is the classic one for a chain (Bellman, 1961, for segmented curves); the
kinds and the split by depth are new here. Complexity: O(n + edges + U log U + S C w) for U units
and C candidates, of which w lie within ``LONGEST`` mean segments; 0.05 s for 17,600 ops.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import TINY, BoolArray, FloatArray, IntArray, LongArray
from gnnplace.graph.computation_graph import ComputationGraph
from gnnplace.graph.jit import kernel
from gnnplace.graph.kernel_arrays import full_table, zero_int_table, zero_ints

CROSSING = 0.3  # price of a cut where as many bytes cross as at a narrow place
NARROW_QUANTILE = 0.25  # of the bytes at candidates: the bytes of a narrow place
CANDIDATES = 12  # candidates for cuts, per segment
LONGEST = 4.0  # work of the longest segment, in mean segments


def cut_line(work: FloatArray, crossing: FloatArray, count: int) -> IntArray:
    """Cut a line of units into segments of similar work where few bytes cross.

    Args:
        work: Seconds of each unit, in the order of the line. [U]
        crossing: Bytes that cross between each unit and the next, inf where no cut may be. [U - 1]
        count: The largest number of segments, S.

    Returns:
        Segment of each unit, ascending from 0. [U]
    """
    if count <= 1 or len(work) <= 1:
        return np.zeros(len(work), dtype=np.int32)
    work_before = np.concatenate(([0.0], np.cumsum(work)))
    candidates = _find_candidates(work_before, crossing, CANDIDATES * count)
    cut_bytes = crossing[candidates - 1]
    candidates = candidates[np.isfinite(cut_bytes)]
    cut_bytes = cut_bytes[np.isfinite(cut_bytes)]
    if len(candidates) == 0:
        return np.zeros(len(work), dtype=np.int32)

    # Bytes count relative to a narrow place of this line, work relative to the mean segment.
    narrow = max(float(np.quantile(cut_bytes, NARROW_QUANTILE)), TINY)
    price = np.concatenate(([0.0], CROSSING * cut_bytes / narrow, [0.0]))
    mean = max(work_before[-1] / count, TINY)
    places = np.concatenate(([0], candidates, [len(work)]))
    cuts = _find_cheapest_cuts(
        work_before[places] / mean, price, min(count, len(places) - 1)
    )
    units_before_cuts = places[cuts]
    segment = np.searchsorted(units_before_cuts, np.arange(len(work)), side="right")
    return segment.astype(np.int32)


def _find_candidates(
    work_before: FloatArray, crossing: FloatArray, num_bins: int
) -> LongArray:
    """Return the number of units before each candidate: the narrowest place of each bin.

    Args:
        work_before: Seconds of all units before each place of the line, both ends included. [U + 1]
        crossing: Bytes that cross at each place but the ends. [U - 1]
        num_bins: The number of bins of equal work.
    """
    share = work_before[1:-1] / max(work_before[-1], TINY)
    bin_index = np.minimum((share * num_bins).astype(np.int64), num_bins - 1)
    by_bin = np.lexsort((crossing, bin_index))
    _, first = np.unique(bin_index[by_bin], return_index=True)
    return np.sort(by_bin[first]) + 1


@kernel
def _find_cheapest_cuts(place: FloatArray, price: FloatArray, count: int) -> IntArray:
    """Return the candidates that are cuts, ascending: at most ``count`` - 1 of them.

    Args:
        place: Work before each candidate in mean segments; the first is the line's beginning, the
            last its end. [C]
        price: The price of a cut at each candidate. [C]
        count: The largest number of segments.
    """
    # least_cost[s, j]: the cost of s segments of which the last ends at candidate j. Squares of
    # lengths favour equal lengths. previous[s, j]: where that last segment begins.
    size = len(place)
    least_cost = full_table(count + 1, size, np.inf)
    previous = zero_int_table(count + 1, size)
    least_cost[0, 0] = 0.0
    for s in range(1, count + 1):
        for j in range(1, size):
            i = j - 1
            while i >= 0 and (i == j - 1 or place[j] - place[i] <= LONGEST):
                length = place[j] - place[i]
                cost = least_cost[s - 1, i] + length * length + price[j]
                if cost < least_cost[s, j]:
                    least_cost[s, j] = cost
                    previous[s, j] = i
                i -= 1
    # The cheapest number of segments; fewer win a tie.
    best = 1
    for s in range(2, count + 1):
        if least_cost[s, size - 1] < least_cost[best, size - 1]:
            best = s
    # Walk back from the end of the line.
    cuts = zero_ints(best - 1)
    j = size - 1
    for s in range(best, 1, -1):
        j = previous[s, j]
        cuts[s - 2] = j
    return cuts


def compute_crossing_bytes(
    graph: ComputationGraph, place: IntArray, count: int
) -> FloatArray:
    """Return the bytes that cross between each place of a line and the next. [count - 1]

    A tensor counts once wherever it crosses, however many consumers it has.

    Args:
        graph: The graph of ops.
        place: Place of each op on the line, -1 if it has none. [n]
        count: The number of places of the line.
    """
    tensor = graph.consumption_tensor
    produced = place[graph.producer]
    consumed = place[graph.consumer]
    is_placed = (consumed >= 0) & (produced[tensor] >= 0)
    low = produced.copy()
    high = produced.copy()
    np.minimum.at(low, tensor[is_placed], consumed[is_placed])
    np.maximum.at(high, tensor[is_placed], consumed[is_placed])
    # A tensor crosses from the lowest to the highest place of its ends: sum up where it begins and
    # ceases to.
    spans = produced >= 0
    change = np.bincount(low[spans], graph.size[spans], count)
    change -= np.bincount(high[spans], graph.size[spans], count)
    return np.maximum(np.cumsum(change)[:-1], 0.0)


@kernel
def move_to_consumers(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    movable: BoolArray,
    place: FloatArray,
) -> FloatArray:
    """Return the places of ops after those without activations are moved to their consumers. [n]

    An op that is movable, as are all ops it descends from, gets the place of its first consumer. A
    capture may list ops that read only parameters, such as transposes, before all others.

    Args:
        order: Ops, producers first. [n]
        offset: Index where each op's successors start in ``successor``. [n + 1]
        successor: Successors of all ops, op after op.
        movable: Whether an op may move. [n]
        place: Place of each op on a line. [n]
    """
    is_moved = movable.copy()
    result = place.copy()
    for op in order:
        if not is_moved[op]:
            for j in range(offset[op], offset[op + 1]):
                is_moved[successor[j]] = False
    for k in range(len(order) - 1, -1, -1):
        op = order[k]
        if is_moved[op] and offset[op] < offset[op + 1]:
            first_consumer = np.inf
            for j in range(offset[op], offset[op + 1]):
                first_consumer = min(first_consumer, result[successor[j]])
            result[op] = first_consumer
    return result


@kernel
def move_behind_followers(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    backward: BoolArray,
    place: FloatArray,
) -> FloatArray:
    """Return the places of ops, with no backward op before a backward op that follows it. [n]

    Gradients go from late layers to early ones, so that a backward op's place is at least that of
    the backward ops that read its gradient. An op that reads no activation of its layer, but a
    table that all layers share (rotary positions, a mask), would else have the place of the table.

    Args:
        order: Ops, producers first. [n]
        offset: Index where each op's successors start in ``successor``. [n + 1]
        successor: Successors of all ops, op after op.
        backward: Whether an op is of the backward pass. [n]
        place: Place of each op on a line. [n]
    """
    result = place.copy()
    for k in range(len(order) - 1, -1, -1):
        op = order[k]
        if backward[op]:
            for j in range(offset[op], offset[op + 1]):
                if backward[successor[j]]:
                    result[op] = max(result[op], result[successor[j]])
    return result


@kernel
def find_leading_elsewhere(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    backward: BoolArray,
    segment: IntArray,
) -> BoolArray:
    """Return whether a path of backward ops leads from each backward op to another segment. [n]

    Args:
        order: Ops, producers first. [n]
        offset: Index where each op's successors start in ``successor``. [n + 1]
        successor: Successors of all ops, op after op.
        backward: Whether an op is of the backward pass. [n]
        segment: Segment of each op. [n]
    """
    result = backward.copy()
    for k in range(len(order) - 1, -1, -1):
        op = order[k]
        leads_out = False
        if backward[op]:
            for j in range(offset[op], offset[op + 1]):
                consumer = successor[j]
                if backward[consumer] and (
                    segment[consumer] != segment[op] or result[consumer]
                ):
                    leads_out = True
        result[op] = leads_out
    return result


def bundle_tensors(graph: ComputationGraph) -> ComputationGraph:
    """Return the graph with one tensor for all tensors of one producer that the same ops consume.

    It has the bytes of all of them, and one message takes the place of several. A search that sends
    each by itself takes twice as long.
    """
    tensor = graph.consumption_tensor
    num_consumers = np.diff(graph.consumer_offset)
    consumers = graph.consumer[np.lexsort((graph.consumer, tensor))]
    leader = _find_leaders(graph, consumers, num_consumers)
    is_leader = leader == np.arange(graph.num_tensors)
    leaders = np.flatnonzero(is_leader)
    bundle = (np.cumsum(is_leader) - 1)[leader]
    consumer_offset = np.concatenate(([0], np.cumsum(num_consumers[leaders])))
    return ComputationGraph(
        names=graph.names,
        producer=graph.producer[leaders],
        size=np.bincount(bundle, graph.size, len(leaders)).astype(np.float64),
        consumer_offset=consumer_offset.astype(np.int32),
        consumer=consumers[is_leader[tensor]],
    )


def _find_leaders(
    graph: ComputationGraph, consumers: IntArray, num_consumers: IntArray
) -> IntArray:
    """Return, for each tensor, the first tensor with the same producer and consumers. [T]

    Args:
        graph: The graph whose tensors are compared.
        consumers: Consumers of each tensor, one tensor after the other, ascending.
        num_consumers: The number of consumers of each tensor. [T]
    """
    # Sets of consumers are compared by a code: the sum of a random number for each consumer.
    op_code = np.random.default_rng(0).integers(
        2**63, size=graph.num_ops, dtype=np.uint64
    )
    code_sums = np.cumsum(op_code[consumers], dtype=np.uint64)
    code_sums = np.concatenate(([np.uint64(0)], code_sums))
    offset = graph.consumer_offset
    code = code_sums[offset[1:]] - code_sums[offset[:-1]]

    # Sorted by producer, number and code, tensors of equal keys are runs; each run's first leads.
    by_key = np.lexsort((code, num_consumers, graph.producer))
    keys = graph.producer[by_key], num_consumers[by_key], code[by_key]
    begins_run = np.ones(graph.num_tensors, dtype=bool)
    begins_run[1:] = np.any([np.diff(key) != 0 for key in keys], axis=0)
    run = np.cumsum(begins_run) - 1
    leader = np.empty(graph.num_tensors, dtype=np.int32)
    leader[by_key] = by_key[np.flatnonzero(begins_run)[run]]

    # Codes may agree by chance: a tensor whose consumers differ from its leader's leads itself.
    consumer_index = np.arange(len(consumers)) - np.repeat(offset[:-1], num_consumers)
    leader_offset = offset[leader][graph.consumption_tensor]
    leader_consumers = consumers[leader_offset + consumer_index]
    different = graph.consumption_tensor[consumers != leader_consumers]
    leader[different] = different
    return leader


def split_cycles(graph: ComputationGraph, group: IntArray) -> IntArray:
    """Return the group of each op after groups on cycles are split, numbered from 0. [n]"""
    from scipy.sparse import coo_matrix  # late: a tenth of a second
    from scipy.sparse.csgraph import connected_components

    # Groups on one cycle are a strongly connected component of the graph of groups.
    num_groups = int(group.max()) + 1
    source, target, _ = graph.edges
    ones = np.ones(len(source), dtype=np.int8)
    group_edges = coo_matrix(
        (ones, (group[source], group[target])), (num_groups, num_groups)
    )
    _, component = connected_components(group_edges, connection="strong")
    component = component.astype(np.int32)

    # Number the pairs of group and depth.
    depth = _compute_depths(
        graph.topological_order,
        graph.successor_offset,
        graph.successor,
        group,
        component[group],
    )
    key = group.astype(np.int64) * (int(depth.max()) + 1) + depth
    return np.unique(key, return_inverse=True)[1].astype(np.int32)


@kernel
def _compute_depths(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    group: IntArray,
    component: IntArray,
) -> IntArray:
    """Return the largest number of changes of group on a path to each op in its component. [n]"""
    depth = zero_ints(len(order))
    for op in order:
        for j in range(offset[op], offset[op + 1]):
            consumer = successor[j]
            if component[consumer] == component[op]:
                depth[consumer] = max(
                    depth[consumer], depth[op] + int(group[consumer] != group[op])
                )
    return depth
