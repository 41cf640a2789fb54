"""Narrow groups: a training graph cut where little crosses, and kinds of work in each segment.

Formulation. Units (ops that share a device) stand in the order of their coordinates; ``segments``
cuts that line into at most S runs so that the sum over runs of ``(work / mean)^2`` and over cuts of
``CROSSING * bytes / narrow`` is least, by dynamic programming (``narrow`` is the lower quartile of
what crosses at the candidates). Candidates are the narrowest place in each of ``CANDIDATES`` S bins
of equal work. A group is then (segment, kind, micro-batch) with the kinds forward, activation
gradient, weight gradient and update: a weight gradient is a backward op from which no path leads to
another segment's backward ops, so that nobody waits for it but the update.

Groups on a cycle are split by depth: the most changes of group on a path to an op inside the
strongly connected component. An edge then leads to a greater depth or stays in its group, so the
split groups make no cycle. Costs come in as an array: estimated ones make groups that every capture
of a model has alike.

The dynamic programme is the classic one for a chain (Bellman, 1961, for segmented curves); kinds
and the split by depth are ours. Complexity: O(n + edges + U log U + S C w) for C candidates, of
which w lie within ``LONGEST`` mean segments; 0.05 s for 17,600 ops.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray, LongArray
from gnnplace.graph.computation_graph import ComputationGraph
from gnnplace.graph.jit import kernel
from gnnplace.graph.kernel_arrays import full_table, zero_int_table, zero_ints

CROSSING = 0.3  # weight of what crosses a cut, over a narrow one
CANDIDATES = 12  # places a segment at which a cut may be
LONGEST = 4.0  # mean segments that a segment may be worth


def segments(work: FloatArray, crossing: FloatArray, count: int) -> IntArray:
    """Cut a line of units into segments of like work where few bytes cross.

    Args:
        work: Seconds of each unit in the line's order. [U]
        crossing: Bytes that cross between each unit and the next, inf where no cut may be. [U - 1]
        count: Segments S at most.

    Returns:
        Segment of each unit, ascending from 0. [U]
    """
    if count <= 1 or len(work) <= 1:
        return np.zeros(len(work), dtype=np.int32)
    total = np.concatenate(([0.0], np.cumsum(work)))
    cut = _candidates(total, crossing, CANDIDATES * count)
    bytes_at = crossing[cut - 1]
    cut = cut[np.isfinite(bytes_at)]
    bytes_at = bytes_at[np.isfinite(bytes_at)]
    if len(cut) == 0:
        return np.zeros(len(work), dtype=np.int32)
    # Bytes count relative to a narrow place of this line, work relative to the mean segment.
    narrow = max(float(np.quantile(bytes_at, 0.25)), 1e-300)
    price = np.concatenate(([0.0], CROSSING * bytes_at / narrow, [0.0]))
    mean = max(total[-1] / count, 1e-300)
    ends = np.concatenate(([0], cut, [len(work)]))
    cuts = _cheapest_cuts(total[ends] / mean, price, min(count, len(ends) - 1))
    inner_ends = ends[cuts]
    return np.searchsorted(inner_ends, np.arange(len(work)), side="right").astype(
        np.int32
    )


def _candidates(total: FloatArray, crossing: FloatArray, bins: int) -> LongArray:
    """Return the number of units before each candidate cut: the narrowest of each bin of work."""
    place = total[1:-1] / max(total[-1], 1e-300)
    bin_of = np.minimum((place * bins).astype(np.int64), bins - 1)
    by_bin = np.lexsort((crossing, bin_of))
    first = np.unique(bin_of[by_bin], return_index=True)[1]
    return np.sort(by_bin[first]) + 1


@kernel
def _cheapest_cuts(place: FloatArray, price: FloatArray, count: int) -> IntArray:
    """Return candidates that are cuts, ascending: at most ``count`` - 1 of them.

    Args:
        place: Work before each candidate in mean segments; the first is the line's beginning, the
            last its end. [C]
        price: The price of a cut at each candidate. [C]
        count: The number of segments at most.
    """
    # least[s, j]: the cost of s segments that end at candidate j. Squares favour equal lengths.
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
    # Fewer segments win a tie. Then walk back from the line's end.
    best = 1
    for s in range(2, count + 1):
        if least_cost[s, size - 1] < least_cost[best, size - 1]:
            best = s
    cuts = zero_ints(best - 1)
    j = size - 1
    for s in range(best, 1, -1):
        j = previous[s, j]
        cuts[s - 2] = j
    return cuts


def crossing_bytes(graph: ComputationGraph, place: IntArray, count: int) -> FloatArray:
    """Return the bytes of tensors that cross between each place of a line and the next. [count - 1]

    Args:
        graph: The graph of ops.
        place: Place of each op on the line, -1 if it has none. [n]
        count: Places of the line.
    """
    tensor = graph.consumption_tensor
    produced = place[graph.producer]
    consumed = place[graph.consumer]
    is_placed = (consumed >= 0) & (produced[tensor] >= 0)
    low = produced.copy()
    high = produced.copy()
    np.minimum.at(low, tensor[is_placed], consumed[is_placed])
    np.maximum.at(high, tensor[is_placed], consumed[is_placed])
    spans = produced >= 0
    change = np.bincount(low[spans], graph.size[spans], count)
    change -= np.bincount(high[spans], graph.size[spans], count)
    return np.maximum(np.cumsum(change)[:-1], 0.0)


@kernel
def beside_consumers(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    movable: BoolArray,
    place: FloatArray,
) -> FloatArray:
    """Return `place` with ops moved to their first consumer. [n]

    Only ops that descend from movable ops alone are moved.

    A capture may list what it makes of parameters alone, such as transposes, before all else.
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
def not_before_followers(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    backward: BoolArray,
    place: FloatArray,
) -> FloatArray:
    """Return `place`, changed so that no backward op is before one that takes its gradient. [n]

    A gradient goes from late layers to early ones. An op that takes no activation of its own layer,
    but a table that all layers share (rotary positions, a mask), has the table's place till then.
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
def leads_elsewhere(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    backward: BoolArray,
    segment: IntArray,
) -> BoolArray:
    """Return whether a path of backward ops leads from each backward op to another segment. [n]"""
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


def bundled(graph: ComputationGraph) -> ComputationGraph:
    """Return the graph with one tensor for all of a producer's tensors that the same ops consume.

    Its messages are those of all: a search that sends them one by one takes twice as long.
    """
    tensor = graph.consumption_tensor
    count = np.diff(graph.consumer_offset)
    taken = graph.consumer[np.lexsort((graph.consumer, tensor))]
    leader = _first_alike(graph, taken, count)
    first = leader == np.arange(graph.num_tensors)
    leaders = np.flatnonzero(first)
    bundle = (np.cumsum(first) - 1)[leader]
    return ComputationGraph(
        names=graph.names,
        producer=graph.producer[leaders],
        size=np.bincount(bundle, graph.size, len(leaders)).astype(np.float64),
        consumer_offset=np.concatenate(([0], np.cumsum(count[leaders]))).astype(
            np.int32
        ),
        consumer=taken[first[tensor]],
    )


def _first_alike(graph: ComputationGraph, taken: IntArray, count: IntArray) -> IntArray:
    """Return the first tensor of the same producer and consumers. [T]

    Tensors are brought together by random numbers of consumers, summed, and then compared.

    Args:
        graph: The graph whose tensors are compared.
        taken: Consumers of each tensor, one tensor after the other, ascending.
        count: How many each has. [T]
    """
    number = np.random.default_rng(0).integers(
        2**63, size=graph.num_ops, dtype=np.uint64
    )
    summed = np.concatenate(([np.uint64(0)], np.cumsum(number[taken], dtype=np.uint64)))
    code = summed[graph.consumer_offset[1:]] - summed[graph.consumer_offset[:-1]]
    by_code = np.lexsort((code, count, graph.producer))
    keys = graph.producer[by_code], count[by_code], code[by_code]
    new = np.ones(graph.num_tensors, dtype=bool)
    new[1:] = np.any([np.diff(key) != 0 for key in keys], axis=0)
    leader = np.empty(graph.num_tensors, dtype=np.int32)
    leader[by_code] = by_code[np.flatnonzero(new)[np.cumsum(new) - 1]]
    inside = np.arange(len(taken)) - np.repeat(graph.consumer_offset[:-1], count)
    leader_consumer = taken[
        graph.consumer_offset[leader][graph.consumption_tensor] + inside
    ]
    apart = graph.consumption_tensor[taken != leader_consumer]
    leader[apart] = apart
    return leader


def split_cycles(graph: ComputationGraph, group: IntArray) -> IntArray:
    """Return the groups with those on cycles split by depth, numbered anew. [n]"""
    from scipy.sparse import coo_matrix  # late: a tenth of a second
    from scipy.sparse.csgraph import connected_components

    count = int(group.max()) + 1
    source, target, _ = graph.edges
    ones = np.ones(len(source), dtype=np.int8)
    # Groups on one cycle are a strong component; depths within it separate their ops again.
    links = coo_matrix((ones, (group[source], group[target])), (count, count))
    part = connected_components(links, connection="strong")[1].astype(np.int32)
    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    depth = _depths(*arrays, group, part[group])
    key = group.astype(np.int64) * (int(depth.max()) + 1) + depth
    return np.unique(key, return_inverse=True)[1].astype(np.int32)


@kernel
def _depths(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    group: IntArray,
    part: IntArray,
) -> IntArray:
    """Return the most changes of group on a path to each op inside its component. [n]"""
    depth = zero_ints(len(order))
    for op in order:
        for j in range(offset[op], offset[op + 1]):
            consumer = successor[j]
            if part[consumer] == part[op]:
                depth[consumer] = max(
                    depth[consumer], depth[op] + int(group[consumer] != group[op])
                )
    return depth
