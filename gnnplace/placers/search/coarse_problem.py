"""A coarse problem, whose ops are groups of a problem's ops, and the way back to the problem.

``graph.coarsening`` groups the ops of one micro-batch and the ops that are not split by
micro-batch; every other micro-batch gets the same groups. No group holds ops of two micro-batches,
since both would then wait for each other. Units that have ops in the same group become one unit,
with all their copies. Ops are never grouped if they differ in phase, pin, the kinds that can run
them, or the devices that are forbidden to them.

Narrow groups: the units, in coordinate order, are cut into segments (``graph.narrow``) by their
mean work on the cluster and by the bytes of the first micro-batch that cross a cut. All groups of a
segment are one unit. A unit whose forward ops are far apart, such as an embedding that is also the
last layer, is a segment of its own, apart from the line. Within a segment, units that may be on
other devices than the rest (by pins or kinds) are also a segment of their own.

Narrow groups are worth it under two conditions. The problem is large: at least ``LEAST_OPS`` ops,
or ``LEAST_TIGHT`` with micro-batches and tight memory, where a search of single units finds little,
because only moves of whole chunks fit. And groups lose little parallelism (``MOST_LOST``): their
critical path is not much longer than that of the ops. It is 1.15 to 1.6 times as long for
transformers, whose layers have parallel ops that are not worth a transfer, and twice as long for
unrolled grids and many branches, where every cut blocks the wavefront.
Complexity: that of ``graph.narrow``, and one quotient graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray, LongArray
from gnnplace.graph import (
    ComputationGraph,
    bundle_tensors,
    coarsen,
    compute_crossing_bytes,
    cut_line,
    find_leading_elsewhere,
    follow_forward,
    move_behind_followers,
    move_to_consumers,
    quotient,
    split_cycles,
    unite_groups,
)
from gnnplace.placers.search.space import LEAST_TIGHT, SearchSpace, unit_mean
from gnnplace.problem import BACKWARD, FORWARD, UPDATE, Problem
from gnnplace.simulation import compute_least_times, compute_longest_path

MOST_CODES = 127  # Coarsening has room for as many combinations of phase, pin and kinds
SEGMENTS = 96
LEAST_OPS = 5_000  # a problem with fewer is placed whole
FEWER, FEWER_TIGHT = 0.5, 0.7  # The largest share of ops that may remain as groups
MOST_LOST = 1.75  # critical path of the groups over that of the ops
FAR = 3.0  # segments over which a unit's forward ops are far apart


@dataclass(frozen=True, eq=False)
class CoarseProblem:
    """A coarse problem and the group that each fine op is in.

    Attributes:
        problem: the problem whose ops are the groups.
        group: group of each op of the fine problem. [n]
    """

    problem: Problem
    group: IntArray

    def fine_order(self, fine: Problem, order: IntArray) -> IntArray:
        """Return an order of the fine ops: group by group, topological inside a group. [n]

        Args:
            fine: the problem whose ops were grouped.
            order: an order of all groups.
        """
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return np.lexsort((fine.graph.position, place[self.group])).astype(np.int32)


def coarse_problem(problem: Problem, target: int) -> CoarseProblem | None:
    """Return the problem with about ``target`` groups; None where grouping cannot make it
    smaller.
    """
    origin = first_copy(problem)
    codes = _codes(problem)
    if origin is None or codes is None or problem.num_ops <= target:
        return None
    first = np.unique(origin)
    per_copy = max(1, target * len(first) // problem.num_ops)
    group = _group_ops(problem, first, codes, per_copy)
    place = np.searchsorted(first, origin)
    key = group[place].astype(np.int64) * problem.microbatches + problem.microbatch
    group = np.unique(key, return_inverse=True)[1].astype(np.int32)
    coarse = make_grouped_problem(problem, group, problem.unit_of)
    if coarse.num_ops >= problem.num_ops or not coarse.unit_allowed.any(axis=1).all():
        return None
    return CoarseProblem(coarse, group)


def first_copy(problem: Problem, ops: IntArray | None = None) -> IntArray | None:
    """Return for each op, or each of ``ops``, its copy in micro-batch 0; None if one has
    none. [n]
    """
    if ops is None:
        ops = np.arange(problem.num_ops, dtype=np.int32)
    if problem.microbatches == 1:
        return ops
    index = problem.graph.index
    names = problem.graph.names
    copies = [
        index.get(f"{names[i].rpartition('#')[0]}#0", -1) if k else i
        for i, k in zip(ops.tolist(), problem.microbatch[ops].tolist(), strict=True)
    ]
    firsts = np.array(copies, dtype=np.int32)
    if (firsts < 0).any() or problem.microbatch[firsts].any():
        return None
    return firsts


def _codes(problem: Problem) -> NDArray[np.int8] | None:
    """Return what ops of a group have in common, as a number; None if there is too much. [n]"""
    runs = np.isfinite(problem.kind_times)
    if problem.forbid is None:
        barred = runs[:, :0]
    else:
        barred = problem.forbid
    rows = np.column_stack([problem.phase, problem.pin, runs, barred]).astype(np.int64)
    _, code = np.unique(rows, axis=0, return_inverse=True)
    if code.max() <= MOST_CODES:
        return code.astype(np.int8).ravel()
    return None


def _group_ops(
    problem: Problem, ops: IntArray, codes: NDArray[np.int8], target: int
) -> IntArray:
    """Group of each of ``ops``, the ops of one micro-batch. [len(ops)]"""
    # The graph between these ops, a tensor an edge.
    local = np.full(problem.num_ops, -1)
    local[ops] = np.arange(len(ops))
    source, target_op, size = problem.graph.edges
    inside = (local[source] >= 0) & (local[target_op] >= 0)
    edges = zip(
        local[source[inside]], size[inside], local[target_op[inside]], strict=True
    )
    tensors = [
        (int(producer), float(num_bytes), [int(consumer)])
        for producer, num_bytes, consumer in edges
    ]
    names = [problem.graph.names[i] for i in ops]
    graph = ComputationGraph.from_tensors(names, tensors)

    # Units of several ops stay together; the rest may go anywhere.
    unit = problem.unit_of[ops]
    is_shared = np.bincount(unit, minlength=problem.num_units)[unit] > 1
    labels = [
        str(u) if shared else None for u, shared in zip(unit, is_shared, strict=True)
    ]
    cost = compute_least_times(problem)[ops]
    return coarsen(graph, cost, target=target, unit=labels, phase=codes[ops])


def make_grouped_problem(problem: Problem, group: IntArray, label: IntArray) -> Problem:
    """Return the problem of groups; where times come from, and their errors, are not kept.

    Args:
        problem: the problem of ops.
        group: group of each op, from 0 without gaps; ops of one share a phase, a micro-batch, and
            a pin if one of them has any. [n]
        label: class of each op, from 0; classes that meet in a group become one unit. [n]
    """
    head = np.unique(group, return_index=True)[1]
    count = len(head)
    share = problem.microbatch[head]
    cut = problem.microbatches > 1
    names = [
        f"group{i}#{k}" if cut else f"group{i}" for i, k in enumerate(share.tolist())
    ]
    pin = np.full(count, -1, dtype=np.int32)
    np.maximum.at(pin, group, problem.pin)
    return replace(
        problem,
        graph=quotient(problem.graph, group, names),
        time={
            k: np.bincount(group, seconds, count).astype(np.float64)
            for k, seconds in problem.time.items()
        },
        state=np.bincount(group, problem.state, count).astype(np.float64),
        phase=problem.phase[head],
        colocate=tuple(f"class{k}" for k in unite_groups(label, group, count).tolist()),
        pin=pin,
        module=tuple(problem.module[i] for i in head),
        members=((),) * count,
        estimated=np.bincount(group, problem.estimated, count) > 0,
        error={},
        source={},
        forbid=_forbidden(problem, group, count),
    )


def _forbidden(problem: Problem, group: IntArray, count: int) -> BoolArray | None:
    """Return whether a device is forbidden to an op of each group. [G, D]"""
    if problem.forbid is None:
        return None
    forbid = np.zeros((count, problem.num_devices), dtype=bool)
    np.logical_or.at(forbid, group, problem.forbid)
    return forbid


@dataclass(frozen=True, eq=False)
class NarrowProblem(CoarseProblem):
    """The coarse problem of narrow groups.

    Attributes:
        line: its units but those that stand alone, by their place in the graph.
        loose: the units that stand alone.
    """

    line: IntArray
    loose: IntArray


_known: WeakKeyDictionary[SearchSpace, NarrowProblem | None] = WeakKeyDictionary()


def narrow_problem(space: SearchSpace) -> NarrowProblem | None:
    """Return the coarse problem of narrow groups; None where the full graph is better placed as it
    is.

    It is made once for a space, which several placers ask about, with ``SEGMENTS`` at most.
    """
    if space not in _known:
        _known[space] = _narrow_problem(space)
    return _known[space]


def groups_take_all_time(space: SearchSpace) -> bool:
    """Return whether narrow groups take all the time; on smaller problems ops have their
    turn too.
    """
    return space.problem.num_ops >= LEAST_OPS and narrow_problem(space) is not None


def _narrow_problem(space: SearchSpace) -> NarrowProblem | None:
    tight = space.problem.microbatches > 1 and space.memory_matters
    if space.problem.num_ops < (LEAST_TIGHT if tight else LEAST_OPS):
        return None
    coarse = _unbundle(space, SEGMENTS)
    share = FEWER_TIGHT if tight else FEWER
    small = coarse.problem.num_ops <= share * space.problem.num_ops
    if not small or not coarse.problem.unit_allowed.any(axis=1).all():
        return None
    if parallelism_lost(space, coarse) <= MOST_LOST:
        return _bundle(coarse)
    return None


def narrow_groups(space: SearchSpace, count: int = SEGMENTS) -> NarrowProblem:
    """Return the coarse problem of narrow groups, whether or not it is worth it."""
    return _bundle(_unbundle(space, count))


def _bundle(coarse: NarrowProblem) -> NarrowProblem:
    problem = coarse.problem
    return replace(
        coarse, problem=replace(problem, graph=bundle_tensors(problem.graph))
    )


def _unbundle(space: SearchSpace, count: int) -> NarrowProblem:
    problem = space.problem
    of_unit, on_line = find_unit_segments(space, count)
    segment = of_unit[problem.unit_of]
    kind = problem.phase.astype(np.int64) + (problem.phase == UPDATE)
    graph = problem.graph
    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    waited = find_leading_elsewhere(*arrays, problem.phase == BACKWARD, segment)
    kind[(problem.phase == BACKWARD) & ~waited] = BACKWARD + 1
    key = (segment * np.int64(4) + kind) * problem.microbatches + problem.microbatch
    far = _nearest(space, segment, on_line)
    group = np.unique(key * np.int64(on_line + 1) + far, return_inverse=True)[1].astype(
        np.int32
    )
    group = split_cycles(graph, group)
    coarse = make_grouped_problem(problem, group, segment)
    unit = np.empty(int(segment.max()) + 1, dtype=np.int32)
    unit[segment] = coarse.unit_of[group]
    return NarrowProblem(
        problem=coarse,
        group=group,
        line=unit[:on_line],
        loose=unit[on_line:],
    )


def _nearest(space: SearchSpace, segment: IntArray, on_line: int) -> IntArray:
    """Return the nearest segment for ops that are not on the line, 0 for others. [n]

    Ops of a unit that are far apart are no group.
    """
    problem = space.problem
    coordinate = coordinates(space)
    begin = np.full(on_line, np.inf)
    is_on_line = (
        (segment < on_line) & (problem.phase == FORWARD) & (problem.microbatch == 0)
    )
    np.minimum.at(begin, segment[is_on_line], coordinate[is_on_line])
    loose = np.flatnonzero(segment >= on_line).astype(np.int32)
    origin = first_copy(problem, loose)
    borders = np.sort(begin[np.isfinite(begin)])
    place = np.zeros(problem.num_ops, dtype=np.int32)
    place[loose] = np.searchsorted(
        borders, coordinate[loose if origin is None else origin]
    )
    return place


def find_unit_segments(space: SearchSpace, count: int) -> tuple[IntArray, int]:
    """Return the segment of each unit, and how many are not of units that stand alone, which are
    last. [U]
    """
    problem = space.problem
    coordinate = coordinates(space)
    alone = find_scattered_units(problem, coordinate, count)
    line = np.argsort(unit_mean(problem, coordinate), kind="stable")
    line = line[~alone[line]]
    place = np.full(problem.num_units, -1, dtype=np.int32)
    place[line] = np.arange(len(line))
    first = np.where(problem.microbatch == 0, place[problem.unit_of], -1).astype(
        np.int32
    )
    crossing = compute_crossing_bytes(problem.graph, first, max(len(line), 1))
    crossing[_find_turned_back(problem, first, len(line))] = np.inf
    segment = np.empty(problem.num_units, dtype=np.int64)
    segment[line] = cut_line(space.mean_work[line], crossing, count)
    segment[alone] = count + np.arange(int(alone.sum()))
    allowed_class = _number_equal_rows(problem.unit_allowed)
    key = segment * (int(allowed_class.max()) + 1) + allowed_class
    keys, segment = np.unique(key, return_inverse=True)
    on_line = int((keys < count * (int(allowed_class.max()) + 1)).sum())
    return segment.astype(np.int32), on_line


def _number_equal_rows(rows: BoolArray) -> LongArray:
    """Return a number for each row, equal ones for equal rows. [U]"""
    if rows.all():
        return np.zeros(len(rows), dtype=np.int64)
    packed = np.packbits(rows, axis=1)
    _, number = np.unique(packed, axis=0, return_inverse=True)
    return number.ravel()


def _find_turned_back(problem: Problem, place: IntArray, count: int) -> BoolArray:
    """Return whether a cut at each place of the line would make groups of forward ops a cycle."""
    source, target, _ = problem.graph.edges
    forward = (problem.phase[source] == FORWARD) & (problem.phase[target] == FORWARD)
    low = place[target]
    high = place[source]
    back = forward & (low >= 0) & (low < high)
    change = np.bincount(low[back], minlength=max(count, 1))
    change -= np.bincount(high[back], minlength=max(count, 1))
    return np.cumsum(change)[:-1] > 0


def coordinates(space: SearchSpace) -> FloatArray:
    """Return the coordinates of ops as ``SearchSpace`` has them but for those that are in wrong
    layers. [n]
    """
    problem = space.problem
    graph = space.problem.graph
    forward = problem.phase == FORWARD
    updated = (
        np.bincount(problem.unit_of, problem.phase == UPDATE, problem.num_units) > 0
    )
    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    place = graph.position.astype(np.float64)
    place = move_to_consumers(*arrays, forward & updated[problem.unit_of], place)
    inputs = (graph.predecessor_offset, graph.predecessor)
    place = follow_forward(graph.topological_order, *inputs, forward, place)
    return np.asarray(move_behind_followers(*arrays, problem.phase == BACKWARD, place))


def find_scattered_units(
    problem: Problem, coordinate: FloatArray, count: int
) -> BoolArray:
    """Return whether a unit's forward ops of one micro-batch are far apart in the graph. [U]"""
    forward = np.flatnonzero((problem.phase == FORWARD) & (problem.microbatch == 0))
    unit = problem.unit_of[forward]
    rank = np.empty(len(forward))
    rank[np.argsort(coordinate[forward], kind="stable")] = np.arange(len(forward))
    low = np.full(problem.num_units, np.inf)
    high = np.full(problem.num_units, -np.inf)
    np.minimum.at(low, unit, rank)
    np.maximum.at(high, unit, rank)
    return high - low > FAR * len(forward) / count


def parallelism_lost(space: SearchSpace, coarse: CoarseProblem) -> float:
    """Return the critical path of the groups over that of the ops, transfers free."""
    return compute_longest_path(coarse.problem) / max(
        compute_longest_path(space.problem), 1e-300
    )
