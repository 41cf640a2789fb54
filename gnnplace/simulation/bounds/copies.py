"""Heads and tails of copies by rank: micro-batches are alike, so that only their number counts.

The copies of an op, one a micro-batch, are on one device: one after the other. Let ``h_k(x)`` be
the least start, in any schedule, of the copy of ``x`` that starts k-th (from 0), whichever that is.
With ``w`` the least times of ops,

* ``h_k(x) >= h_k(p) + w_p`` for an input ``p`` that feeds each copy from its own: k + 1 copies of
  ``p`` have finished. Where only some copies are fed, or a single op feeds all or takes all, as
  updates do, the rank is another one (``slack``);
* ``h_k(x) >= h_(k-1)(x) + w_x``;
* the ancestors of ``x`` that are in its own placement unit are on its device too: k + 1 copies of
  each, released at ``h_0``, and k copies of ``x`` come before it, one after the other;
* the (k + 1)-th least head of the copies themselves, which the caller starts from.

Tails are the same on the reversed graph: ``q_k(x)`` is the least time after the finish of the copy
that finishes k-th from last. In a problem without micro-batches each op has one copy, and all of
this holds.

Copies are recognised by their names (``#k``). If the copies of some op are in different units, or
their graph has a cycle, every op is treated as having no other copies. Edges between different
micro-batches, such as those that keep updates of a buffer in order, only count in the heads of
single ops.

Complexity: O(M (edges + pairs)) over edges of the graph of one micro-batch, and pairs of ops where
one is an ancestor of the other in its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray, LongArray
from gnnplace.graph import by_merging, empty_floats, first_ready_first, kernel
from gnnplace.problem import Problem


@dataclass(frozen=True, eq=False)
class Copies:
    """Ops without micro-batches, G of them, each with its copies; E edges between them.

    Attributes:
        of: the group of each op. [n]
        begin: Index where the copies of each group start among all n. [G + 1]
        first: an op of each group. [G]
        order: all groups, producers first. [G]
        source: where each edge comes from. [E]
        target: where it goes to, ascending. [E]
        matched: pairs of copies that it stands for. [E]
        size: bytes of the least such pair. [E]
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
        """Return the pattern of each edge. [E]

        Whether it feeds each copy from its own, or from all copies, or all from one.
        """
        count = self.count
        return np.asarray(
            self.matched == np.maximum(count[self.source], count[self.target])
        )


def find_copies(problem: Problem) -> Copies:
    """Return the copies of the ops of ``problem``."""
    if problem.microbatches > 1:
        copies = _copies(problem, _groups(problem))
        if copies is not None:
            return copies
    alone = _copies(problem, np.arange(problem.num_ops))
    assert alone is not None
    return alone


def _groups(problem: Problem) -> LongArray:
    """Group ops of one name, but for the micro-batch, and of one unit; alone if that is not one
    each.
    """
    groups: dict[tuple[int, str], int] = {}
    names = problem.graph.names
    unit_of = problem.unit_of.tolist()
    of = np.array(
        [
            groups.setdefault(
                (unit_of[i], name.rpartition("#")[0] or name), len(groups)
            )
            for i, name in enumerate(names)
        ]
    )
    share = of * problem.microbatches + problem.microbatch
    if len(np.unique(share)) == len(of):
        return of
    return np.arange(len(of))


def _copies(problem: Problem, of: LongArray) -> Copies | None:
    """Return copies by group; None where the groups' graph has a cycle."""
    count = np.bincount(of)
    source, target, size = problem.graph.edges
    is_within = (count[of[source]] == 1) | (count[of[target]] == 1)
    is_within |= problem.microbatch[source] == problem.microbatch[target]
    key = of[target[is_within]] * len(count) + of[source[is_within]]
    pair, inverse, matched = np.unique(key, return_inverse=True, return_counts=True)
    smallest = np.full(len(pair), np.inf)
    np.minimum.at(smallest, inverse, size[is_within])
    to, come = np.divmod(pair, len(count))
    by_source = np.argsort(come, kind="stable")
    order = first_ready_first(offsets(come, len(count)), to[by_source].astype(np.int32))
    if len(order) < len(count):
        return None
    return Copies(
        of=of,
        begin=np.concatenate(([0], count.cumsum())).astype(np.int32),
        first=np.unique(of, return_index=True)[1],
        order=np.asarray(order),
        source=come.astype(np.int32),
        target=to.astype(np.int32),
        matched=matched.astype(np.int32),
        size=smallest,
    )


def offsets(key: NDArray[np.integer], count: int) -> IntArray:
    """Return where each of ``count`` keys starts in a list sorted by key. [count + 1]"""
    return np.concatenate(([0], np.bincount(key, minlength=count).cumsum())).astype(
        np.int32
    )


def by_rank(copies: Copies, values: FloatArray) -> FloatArray:
    """Return the values of ops, those of one group together and ascending. [n]"""
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
    """Return the least starts of copies by rank in seconds; reversed, least times after them. [n]

    Args:
        copies: the ops by groups of copies.
        work: least seconds of each group. [G]
        least: heads (tails) of the copies that are known already, ascending in each group. [n]
        inside: ancestors (descendants) of each group in its own unit, as offsets and a list.
        apart: least seconds of a transfer along each edge that must have one, else 0. [E]
        reverse: tails, and not heads.
    """
    near, far = (
        (copies.source, copies.target) if reverse else (copies.target, copies.source)
    )
    if reverse:
        order = copies.order[::-1].copy()
    else:
        order = copies.order
    by_near = np.argsort(near, kind="stable")
    slack = copies.count[near] - copies.matched
    offset = offsets(near, len(copies.first))
    value = least.copy()
    edges = GroupEdges(
        offset=offset,
        source=far[by_near],
        slack=slack[by_near].astype(np.int32),
        apart=apart[by_near],
        inside_offset=inside[0],
        inside=inside[1],
    )
    _starts(order, copies.begin, edges, work, value)
    return value


class GroupEdges(NamedTuple):
    """Edges into groups of copies, and ancestors of groups in their own units.

    Attributes:
        offset: Index where the edges into each group start. [G + 1]
        source: The group that each edge comes from. [E]
        slack: Copies that the edge does not feed. [E]
        apart: Seconds that its transfer takes at least. [E]
        inside_offset: Index where the ancestors of each group in its unit start. [G + 1]
        inside: The ancestors of each group in its own unit, as ``inside_offset`` says.
    """

    offset: IntArray
    source: IntArray
    slack: IntArray
    apart: FloatArray
    inside_offset: IntArray
    inside: IntArray


@kernel
def _starts(
    order: IntArray,
    begin: IntArray,
    edges: GroupEdges,
    work: FloatArray,
    value: FloatArray,
) -> None:
    """Raise ``value`` to the least starts by rank.

    Args:
        order: groups, producers first. [G]
        begin: Index where the copies of each group start. [G + 1]
        edges: the edges into each group, and its ancestors in its own unit.
        work: least seconds of each group. [G]
        value: Input and output, seconds. [n]
    """
    offset, source, slack, apart, inside_offset, inside = edges
    for x in order:
        low = begin[x]
        count = begin[x + 1] - begin[x]
        for e in range(offset[x], offset[x + 1]):
            p = source[e]
            last = begin[p + 1] - begin[p] - 1
            for k in range(count):
                rank = min(k - slack[e], last)
                if rank >= 0:
                    ready = value[begin[p] + rank] + work[p] + apart[e]
                    value[low + k] = max(value[low + k], ready)
        for k in range(1, count):
            value[low + k] = max(value[low + k], value[low + k - 1] + work[x])
        a = inside_offset[x]
        size = inside_offset[x + 1] - inside_offset[x]
        if size == 0:
            continue
        released = empty_floats(size)
        for i in range(size):
            released[i] = value[begin[inside[a + i]]]
        by_release = by_merging(released)  # nearly sorted: ancestors come first
        for k in range(count):
            finish = 0.0
            for i in by_release:
                y = inside[a + i]
                finish = (
                    max(finish, released[i])
                    + min(k + 1, begin[y + 1] - begin[y]) * work[y]
                )
            value[low + k] = max(value[low + k], max(finish, value[low]) + k * work[x])
