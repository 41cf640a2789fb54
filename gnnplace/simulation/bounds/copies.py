"""Heads and tails of copies of ops by rank: micro-batches are alike, so only their number counts.

The copies of an op, one for each micro-batch, are on one device and run one after the other. Let
``h_k(x)`` be the least start, in any schedule, of the copy of ``x`` that starts k-th (from 0),
whichever that is. With ``w`` the least seconds of ops, ``starts`` computes ``h`` as the largest of
these bounds:

* ``h_k(p) + w_p`` for an input ``p`` that feeds each copy of ``x`` from its own copy, since then
  k + 1 copies of ``p`` have finished. Where only some copies are fed, or where one op feeds all
  copies or reads all, as updates do, the rank of ``p`` is another one (``slack``);
* ``h_(k-1)(x) + w_x``;
* the time of the work before it on its device: the ancestors of ``x`` in its own placement unit,
  k + 1 copies of each, released at ``h_0``, and then k copies of ``x``, one after the other;
* the (k + 1)-th least head of the copies as single ops, which the caller gives.

Tails are the same on the reversed graph: ``q_k(x)`` is the least time after the finish of the copy
that finishes k-th from last. Without micro-batches each op has one copy, and all of this holds.

``find_copies`` recognises copies by their names (``#k``). If the copies of some op are in different
units, or if the graph of groups of copies has a cycle, every op counts as one without other copies.
Edges between different micro-batches, such as those that keep updates of a buffer in order, only
count in the heads of single ops.

Complexity: O(M (edges + pairs)) for M micro-batches, with the edges of the graph of one
micro-batch, and pairs of ops of one unit where one is an ancestor of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray, LongArray
from gnnplace.graph import empty_floats, first_ready_first, kernel, sort_by_merging
from gnnplace.problem import Problem


@dataclass(frozen=True, eq=False)
class Copies:
    """Ops in groups of copies: the n ops in G groups, with E edges between groups.

    Attributes:
        of: Group of each op. [n]
        begin: Index where the copies of each group start, if all n are sorted by group. [G + 1]
        first: The first op of each group. [G]
        order: All groups, producers first. [G]
        source: The group that each edge comes from. [E]
        target: The group that each edge goes to, ascending. [E]
        matched: The number of pairs of copies that an edge stands for. [E]
        size: Bytes of the smallest of these pairs. [E]
    """

    of: LongArray
    begin: IntArray
    first: LongArray
    order: IntArray
    source: IntArray
    target: IntArray
    matched: IntArray
    size: FloatArray

    @property
    def count(self) -> IntArray:
        """Return the number of copies of each group. [G]"""
        return np.diff(self.begin)

    @property
    def full(self) -> BoolArray:
        """Return whether an edge feeds every copy. [E]

        It feeds each copy from its own copy, or all copies from one op, or one op from all copies.
        """
        count = self.count
        return np.asarray(
            self.matched == np.maximum(count[self.source], count[self.target])
        )


def find_copies(problem: Problem) -> Copies:
    """Group the ops of ``problem`` into copies of each other."""
    if problem.microbatches > 1:
        copies = _build_copies(problem, _group_ops(problem))
        if copies is not None:
            return copies
    single_ops = _build_copies(problem, np.arange(problem.num_ops))
    assert single_ops is not None  # the problem's graph has no cycle
    return single_ops


def _group_ops(problem: Problem) -> LongArray:
    """Return the group of each op: its unit, and its name without the micro-batch. [n]

    If a group has two ops of one micro-batch, every op is a group.
    """
    groups: dict[tuple[int, str], int] = {}
    unit_of = problem.unit_of.tolist()
    op_group = []
    for i, name in enumerate(problem.graph.names):
        base_name = name.rpartition("#")[0] or name
        op_group.append(groups.setdefault((unit_of[i], base_name), len(groups)))
    of = np.array(op_group)
    group_and_microbatch = of * problem.microbatches + problem.microbatch
    if len(np.unique(group_and_microbatch)) == len(of):
        return of
    return np.arange(len(of))


def _build_copies(problem: Problem, of: LongArray) -> Copies | None:
    """Return the copies by group; None if the graph of groups has a cycle.

    Args:
        problem: The problem.
        of: Group of each op. [n]
    """
    num_copies = np.bincount(of)
    num_groups = len(num_copies)

    # Edges inside a micro-batch, and those of ops without copies.
    source, target, size = problem.graph.edges
    is_within = (num_copies[of[source]] == 1) | (num_copies[of[target]] == 1)
    is_within |= problem.microbatch[source] == problem.microbatch[target]

    # Edges between groups, sorted by target, with their numbers of pairs and least bytes.
    key = of[target[is_within]] * num_groups + of[source[is_within]]
    pair, inverse, matched = np.unique(key, return_inverse=True, return_counts=True)
    smallest = np.full(len(pair), np.inf)
    np.minimum.at(smallest, inverse, size[is_within])
    group_target, group_source = np.divmod(pair, num_groups)

    by_source = np.argsort(group_source, kind="stable")
    order = first_ready_first(
        offsets(group_source, num_groups), group_target[by_source].astype(np.int32)
    )
    if len(order) < num_groups:
        return None
    return Copies(
        of=of,
        begin=np.concatenate(([0], num_copies.cumsum())).astype(np.int32),
        first=np.unique(of, return_index=True)[1],
        order=np.asarray(order),
        source=group_source.astype(np.int32),
        target=group_target.astype(np.int32),
        matched=matched.astype(np.int32),
        size=smallest,
    )


def offsets(key: NDArray[np.integer], count: int) -> IntArray:
    """Return where each of ``count`` keys starts in a list sorted by key. [count + 1]"""
    return np.concatenate(([0], np.bincount(key, minlength=count).cumsum())).astype(
        np.int32
    )


def sort_by_rank(copies: Copies, values: FloatArray) -> FloatArray:
    """Return the values of ops sorted by group, and ascending within a group. [n]"""
    return np.asarray(values[np.lexsort((values, copies.of))])


def starts(
    copies: Copies,
    work: FloatArray,
    least: FloatArray,
    inside: tuple[IntArray, IntArray],
    apart: FloatArray,
    *,
    reverse: bool = False,
) -> FloatArray:
    """Return the least starts of copies by rank in seconds, or their tails with ``reverse``. [n]

    Args:
        copies: The ops in groups of copies.
        work: Least seconds of an op of each group. [G]
        least: Heads (tails) of the copies as single ops, ascending within each group. [n]
        inside: Ancestors (descendants) of each group in its own unit, as offsets and a list.
        apart: Least seconds of the transfer along each edge whose ends are on different devices in
            every placement, else 0. [E]
        reverse: Whether tails are computed instead of heads.
    """
    # An edge bounds the start of the group at its near end by that of the group at its far end.
    if reverse:
        near, far = copies.source, copies.target
        order = copies.order[::-1].copy()
    else:
        near, far = copies.target, copies.source
        order = copies.order
    by_near = np.argsort(near, kind="stable")
    slack = copies.count[near] - copies.matched
    value = least.copy()
    edges = GroupEdges(
        offset=offsets(near, len(copies.first)),
        source=far[by_near],
        slack=slack[by_near].astype(np.int32),
        apart=apart[by_near],
        inside_offset=inside[0],
        inside=inside[1],
    )
    _raise_starts(order, copies.begin, edges, work, value)
    return value


class GroupEdges(NamedTuple):
    """Edges into groups of copies, and ancestors of groups in their own units.

    Attributes:
        offset: Index where the edges into each group start. [G + 1]
        source: The group that each edge comes from. [E]
        slack: Number of copies that each edge does not feed. [E]
        apart: Least seconds of the transfer along each edge. [E]
        inside_offset: Index where the ancestors of each group start in ``inside``. [G + 1]
        inside: Ancestors of each group in its own unit, group after group.
    """

    offset: IntArray
    source: IntArray
    slack: IntArray
    apart: FloatArray
    inside_offset: IntArray
    inside: IntArray


@kernel
def _raise_starts(
    order: IntArray,
    begin: IntArray,
    edges: GroupEdges,
    work: FloatArray,
    value: FloatArray,
) -> None:
    """Raise ``value`` to the least starts by rank: the bounds of the module's text.

    Args:
        order: All groups, producers first. [G]
        begin: Index where the copies of each group start in ``value``. [G + 1]
        edges: The edges into each group, and its ancestors in its own unit.
        work: Least seconds of an op of each group. [G]
        value: Input and output: least starts in seconds. [n]
    """
    offset, source, slack, apart, inside_offset, inside = edges
    for x in order:
        low = begin[x]
        count = begin[x + 1] - begin[x]
        # Inputs.
        for e in range(offset[x], offset[x + 1]):
            p = source[e]
            last = begin[p + 1] - begin[p] - 1
            for k in range(count):
                rank = min(k - slack[e], last)
                if rank >= 0:
                    ready = value[begin[p] + rank] + work[p] + apart[e]
                    value[low + k] = max(value[low + k], ready)
        # Copies that come before.
        for k in range(1, count):
            value[low + k] = max(value[low + k], value[low + k - 1] + work[x])
        # Ancestors on the same device.
        a = inside_offset[x]
        size = inside_offset[x + 1] - inside_offset[x]
        if size == 0:
            continue
        released = empty_floats(size)
        for i in range(size):
            released[i] = value[begin[inside[a + i]]]
        by_release = sort_by_merging(released)  # nearly sorted: ancestors come first
        for k in range(count):
            finish = 0.0
            for i in by_release:
                y = inside[a + i]
                finish = (
                    max(finish, released[i])
                    + min(k + 1, begin[y + 1] - begin[y]) * work[y]
                )
            value[low + k] = max(value[low + k], max(finish, value[low]) + k * work[x])
