"""Serial runs: ancestors on an op's device run one after the other, all others need a transfer.

A longest path lets the branches into an op run at the same time and their results arrive at no
cost. But in any placement an ancestor ``y`` of an op ``x`` is either on ``x``'s device, which then
cannot run anything else meanwhile, or its result takes at least one transfer. In ranks of copies
(``copies``), with ``r`` the rank of ``y`` that rank ``k`` of ``x`` waits for:

* ``y`` elsewhere: ``h_k(x) >= R(y) = h_r(y) + w_y + A(y)``, where ``A(y)`` is the least time from
  the end of ``y`` to ``x`` if the two are apart. For each ``z`` that takes ``y``'s result and leads
  to ``x`` on a path of ``L(z)`` seconds, either that edge has the transfer or ``z`` is with ``y``:
  ``A(y) >= min(c_yz + w_z + L(z), w_z + A(z))``. For an input of ``x`` itself it is the transfer;
  those of all copies hold one link in turn.
* Ancestors ``Y`` on ``x``'s device: ``h_k(x) >= S(Y) = C(Y) + k w_x`` with ``C(Y)`` the end of
  ``r + 1`` copies of each, one after the other, none before its head ``h_0``.

Ancestors are taken by falling ``R``: ``Y_j`` are the first ``j``. If ``x`` starts before
``R`` of them all, all are on its device, so for every ``j``

    h_k(x) >= min(min of R over Y_j, S(Y_j)).

This is the lower bound of Papadimitriou and Yannakakis (1990) and Jung, Kirousis and Spirakis
(1993), extended by transfers of any length, work and ranks. Theirs is for ops of unit time on
unlimited machines, where running ops twice can reach it. Times are those of the best kinds of
devices. Tails are heads of the reversed graph. Only edges that feed every copy count
(``Copies.full``).

At most ``MOST_KEPT`` ancestors of an op and ``MOST_SEEN`` edges are examined; fewer weaken the
bound but keep it valid.
Complexity: O(n MOST_KEPT (MOST_KEPT + log MOST_SEEN)) at worst; 0.1 s for 9,000 ops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import (
    empty_floats,
    empty_ints,
    full_ints,
    heap_pop,
    heap_push,
    inner,
    kernel,
)
from gnnplace.simulation.bounds.copies import offsets
from gnnplace.simulation.bounds.relaxation import Relaxation

MOST_KEPT = 48
MOST_SEEN = 400


class Inputs(NamedTuple):
    """Groups of copies and the edges that feed all copies, by what they feed.

    Attributes:
        begin: Index where the copies of each group start. [G + 1]
        offset: Index where the edges into each group start. [G + 1]
        input_group: the group that each edge comes from. [E]
        slack: rank of the group fed, less the rank that it waits for, where there is one. [E]
        crossing: least seconds of a transfer. [E]
        service: least seconds that it holds its link. [E]
        apart: seconds of a transfer that is forced, else 0. [E]
        part: groups of one part are on one device. [G]
        work: least seconds of an op of each group. [G]
    """

    begin: IntArray
    offset: IntArray
    input_group: IntArray
    slack: IntArray
    crossing: FloatArray
    service: FloatArray
    apart: FloatArray
    part: IntArray
    work: FloatArray


class Seen(NamedTuple):
    """Working arrays on one op's ancestors: groups count whose ``turn`` is that of the op.

    Attributes:
        turn: the number of the search that has last seen each group. [G]
        included: the number of the search that has last kept it on the op's device. [G]
        rank: the rank of each that the op waits for. [G]
        near: L, seconds of the longest path seen to the op. [G]
        far: A, least seconds to the op from another device. [G]
        keys: a heap of -R. [MOST_SEEN]
        items: groups on it. [MOST_SEEN]
        head: least starts of those kept, from the latest to the earliest. [MOST_KEPT]
        end: end of all work that starts no earlier, if it starts with that one. [MOST_KEPT]
        value: heads of all copies by rank, as far as they are raised. [n]
    """

    turn: IntArray
    included: IntArray
    rank: IntArray
    near: FloatArray
    far: FloatArray
    keys: FloatArray
    items: IntArray
    head: FloatArray
    end: FloatArray
    value: FloatArray


def with_serial_runs(relaxation: Relaxation) -> Relaxation:
    """Return the relaxation with heads and tails that know of serial runs."""
    tail = _raise_bounds(relaxation, relaxation.tail, reverse=True)
    head = _raise_bounds(relaxation, relaxation.head, reverse=False)
    return replace(relaxation, least_head=head, least_tail=tail)


def _raise_bounds(
    relaxation: Relaxation, least: FloatArray, *, reverse: bool
) -> FloatArray:
    """Return the heads, or tails of the graph as it is reversed, that are not below
    ``least``. [n]
    """
    order = relaxation.copies.order
    value = least.copy()
    inputs = _inputs(relaxation, reverse=reverse)
    _raise_all(order[::-1].copy() if reverse else order, inputs, value)
    return value


def _inputs(relaxation: Relaxation, *, reverse: bool) -> Inputs:
    copies = relaxation.copies
    work = relaxation.work
    full_edges = np.flatnonzero(copies.full)
    source = copies.source[full_edges]
    target = copies.target[full_edges]
    near, far = (source, target) if reverse else (target, source)
    by_near = np.argsort(near, kind="stable")
    edge = full_edges[by_near]
    slack = copies.count[near] - copies.matched[full_edges]
    return Inputs(
        begin=copies.begin,
        offset=offsets(near, len(work)),
        input_group=far[by_near],
        slack=slack[by_near].astype(np.int32),
        crossing=relaxation.crossing[edge],
        service=relaxation.service[edge],
        apart=relaxation.apart[edge],
        part=relaxation.machines.part,
        work=work,
    )


@kernel
def _raise_all(order: IntArray, inputs: Inputs, value: FloatArray) -> None:
    """Raise ``value``, the heads of all copies by rank. ``order``: groups, producers first."""
    count = len(order)
    ancestors_seen = Seen(
        full_ints(count, -1),
        full_ints(count, -1),
        empty_ints(count),
        empty_floats(count),
        empty_floats(count),
        empty_floats(MOST_SEEN),
        empty_ints(MOST_SEEN),
        empty_floats(MOST_KEPT),
        empty_floats(MOST_KEPT),
        value,
    )
    turn = 0
    for x in order:
        low = inputs.begin[x]
        for k in range(inputs.begin[x + 1] - low):
            earliest = _find_feed_time(inputs, value, x, k)
            if k > 0:
                earliest = max(earliest, value[low + k - 1] + inputs.work[x])
            value[low + k] = max(value[low + k], earliest)
            value[low + k] = max(
                value[low + k], _start(inputs, ancestors_seen, x, k, turn)
            )
            turn += 1


@inner(_nrt=False)
def _rank(inputs: Inputs, edge: int, rank: int) -> int:
    """Return the rank of an edge's input that a rank of its consumer waits for, -1 for none."""
    input_group = inputs.input_group[edge]
    last = inputs.begin[input_group + 1] - inputs.begin[input_group] - 1
    return max(min(rank - inputs.slack[edge], last), -1)


@inner(_nrt=False)
def _find_feed_time(inputs: Inputs, value: FloatArray, x: int, k: int) -> float:
    """Return the seconds before which the inputs of rank ``k`` of ``x`` are not there."""
    earliest = 0.0
    for e in range(inputs.offset[x], inputs.offset[x + 1]):
        y = inputs.input_group[e]
        rank = _rank(inputs, e, k)
        if rank >= 0:
            finish = value[inputs.begin[y] + rank] + inputs.work[y]
            earliest = max(earliest, finish + inputs.apart[e])
    return earliest


@inner(_nrt=False)
def _start(inputs: Inputs, seen: Seen, x: int, k: int, turn: int) -> float:
    """Return the least start of rank ``k`` of ``x`` in seconds."""
    value = seen.value
    earliest = value[inputs.begin[x] + k]
    work = inputs.work[x]
    elsewhere = np.inf
    serial = value[inputs.begin[x]] + k * work
    num_included = 0
    seen.rank[x] = k
    waiting, pushes = _see(inputs, seen, x, x, turn, 0, 0)
    while waiting > 0 and num_included < MOST_KEPT and serial < elsewhere:
        away = -seen.keys[0]
        y = heap_pop(seen.keys, seen.items, 0, waiting)
        waiting -= 1
        if seen.included[y] == turn:
            continue
        if away <= max(earliest, serial):
            break
        seen.included[y] = turn
        elsewhere = min(elsewhere, away)
        copies = seen.rank[y] + 1
        end = _keep(seen, num_included, value[inputs.begin[y]], copies * inputs.work[y])
        serial = max(serial, end + k * work)
        num_included = num_included + 1
        waiting, pushes = _see(inputs, seen, x, y, turn, waiting, pushes)
    return min(elsewhere, serial)


@inner(_nrt=False)
def _keep(seen: Seen, kept: int, head: float, work: float) -> float:
    """Add work to that of ``kept`` ancestors on the op's device; return the end of it all in
    seconds.
    """
    at = kept
    while at > 0 and seen.head[at - 1] <= head:
        seen.head[at], seen.end[at] = seen.head[at - 1], seen.end[at - 1] + work
        at -= 1
    if at > 0:
        later = seen.end[at - 1] - seen.head[at - 1]
    else:
        later = 0.0
    seen.head[at] = head
    seen.end[at] = head + work + later
    end = 0.0
    for i in range(kept + 1):
        end = max(end, seen.end[i])
    return end


@inner(_nrt=False)
def _see(
    inputs: Inputs, seen: Seen, x: int, z: int, turn: int, waiting: int, pushes: int
) -> tuple[int, int]:
    """Look at the inputs of ``z``, which is ``x`` or on its device; return what waits, and all
    pushes.
    """
    rank = seen.rank[z]
    value = seen.value
    for e in range(inputs.offset[z], inputs.offset[z + 1]):
        y = inputs.input_group[e]
        of = _rank(inputs, e, rank)
        if of < 0 or pushes >= MOST_SEEN or seen.included[y] == turn:
            continue
        if seen.turn[y] != turn:
            seen.turn[y] = turn
            seen.rank[y] = of
            seen.near[y] = 0.0
            seen.far[y] = -1.0
        seen.rank[y] = min(seen.rank[y], of)
        far = _far(inputs, seen, x, z, y, e, of)
        if z != x:
            seen.near[y] = max(seen.near[y], inputs.work[z] + seen.near[z])
        if far > seen.far[y]:
            seen.far[y] = far
            away = value[inputs.begin[y] + seen.rank[y]] + inputs.work[y] + far
            heap_push(seen.keys, seen.items, 0, waiting, -away, y)
            waiting = waiting + 1
            pushes = pushes + 1
    return waiting, pushes


@inner(_nrt=False)
def _far(
    inputs: Inputs, seen: Seen, x: int, z: int, y: int, edge: int, rank: int
) -> float:
    """Return the least seconds from the end of ``y`` on another device to ``x`` through ``z``; inf
    if none.
    """
    if inputs.part[y] == inputs.part[x]:
        return np.inf
    if z == x:
        return _compute_in_turn(inputs, seen.value, y, edge, rank)
    together = inputs.work[z] + seen.far[z]
    if inputs.part[y] == inputs.part[z]:
        return together
    return min(inputs.crossing[edge] + inputs.work[z] + seen.near[z], together)


@inner(_nrt=False)
def _compute_in_turn(
    inputs: Inputs, value: FloatArray, y: int, edge: int, rank: int
) -> float:
    """Return the seconds of the transfer of rank ``rank`` of ``y``, after those before it on the
    link.
    """
    low = inputs.begin[y]
    work = inputs.work[y]
    crossing = inputs.crossing[edge]
    served = 0.0
    service = inputs.service[edge]
    for k in range(rank + 1 if inputs.begin[y + 1] - low > 1 else 0):
        served = max(served, value[low + k] + work) + service
    return max(crossing, served + crossing - service - value[low + rank] - work)
