"""The order of actions: which pass of which micro-batch every rank of a pipeline runs next.

A pipeline of C chunks on P ranks runs for every chunk and micro-batch a forward pass F, the
gradients of activations I and those of weights W (or B, both at once):

* 1f1b (Narayanan et al., 2021, arXiv 2104.04473, section 2.2.1): chunk c on rank c; P - c - 1
  forward passes, then a forward and a backward pass B in turns, then the backward passes left;
* gpipe (Huang et al., 2019, arXiv 1811.06965): all forward passes, then all backward passes;
* interleaved:v (there, section 2.2.2): v P chunks, chunk c on rank c mod P, in Megatron-LM's order:
  P micro-batches through one chunk, then through the next; M is a multiple of P;
* zbv (Qi et al., 2024, arXiv 2401.10241, section 6, as PyTorch's `ScheduleZBVZeroBubble` lists it):
  2 P chunks, chunk c on rank c and 2 P - 1 - c on the same; rank p runs 2 (P - p) - 1 forward
  passes through its first chunk before one through its second, W behind its I but at the end.

The other orders come from a list schedule (`run_list_schedule`). A free rank considers, for every
chunk and kind of pass, the first micro-batch that waits there. Of those that are ready it takes I
before F before W, then the older micro-batch, then the later chunk; it takes no F while the chunk
has as many micro-batches in flight as its limit allows. Messages between two ranks are sent one
after the other in each direction, so that the schedule's time equals the simulator's unless
transfers block. The orders differ in their limits and in the rank of each chunk:

* zero-bubble (Qi et al., 2024, arXiv 2401.10241, ZB-H1): chunk c on rank c, P - c in flight, W
  where nothing else is ready: the memory is that of 1f1b;
* v (2401.10241, section 5): 2 P chunks, chunk c on rank c and 2 P - 1 - c on the same.

Complexity: O(C M log(C M)) for M micro-batches.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, LongArray
from gnnplace.errors import InputError
from gnnplace.plans.order.names import SHAPED_AS_V, ZBV

FORWARD = "F"
INPUT = "I"
WEIGHT = "W"
FULL = "B"
# The suffix of "zero-bubble:searched" and "v:searched"; see `plans.search.search`.
SEARCHED = "searched"
SCHEDULE = re.compile(
    f"1f1b|gpipe|zbv|(zero-bubble|v)(:{SEARCHED})?|interleaved(:[1-9][0-9]{{0,2}})?"
)


class Action(NamedTuple):
    """A pass of one micro-batch through one chunk.

    Attributes:
        chunk: Number of the chunk (the stage) in the pipeline.
        kind: F, I, W or B; in rows of a plan also a message, such as SEND_F.
        microbatch: Number of the micro-batch.
    """

    chunk: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind}{self.microbatch}"


Orders = tuple[tuple[Action, ...], ...]
"""Actions of every rank. [P][actions]"""


@dataclass(frozen=True)
class Pipeline:
    """The chunks of a pipeline with their ranks and times, for which an order is made.

    Attributes:
        rank: Rank of each chunk. [C]
        seconds: Seconds of F, I and W of each chunk. [C]
        sent: Seconds of a message from each chunk to the next. [C - 1]
        microbatches: M, the number of micro-batches of a step.
        apart: Whether I and W are passes of their own, and not one pass B.
        limit: The most micro-batches that each chunk may have in flight. [C]
    """

    rank: tuple[int, ...]
    seconds: tuple[tuple[float, float, float], ...]
    sent: tuple[float, ...]
    microbatches: int
    apart: bool
    limit: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Return P, the number of pipeline ranks."""
        return max(self.rank) + 1

    def between(self, chunk: int) -> float:
        """Return the seconds of a message from a chunk to the next; 0 if both are on one rank."""
        if self.rank[chunk] == self.rank[chunk + 1]:
            return 0.0
        return self.sent[chunk]


@dataclass(frozen=True)
class Rules:
    """The preferences of a list schedule, beside its times; one entry for every chunk. [C]

    Attributes:
        limit: The most micro-batches that may be in flight.
        late: Whether forward passes come before backward ones.
        weights: Whether gradients of weights come before forward passes.
    """

    limit: tuple[int, ...]
    late: tuple[bool, ...]
    weights: tuple[bool, ...]


def usual(line: Pipeline) -> Rules:
    """Return the default rules: backward, then forward, then weights, within the limits."""
    no = (False,) * len(line.rank)
    return Rules(line.limit, no, no)


def chunk_ranks(schedule: str, ranks: int) -> tuple[int, ...]:
    """Return the rank of every chunk under a schedule. [C]

    Args:
        schedule: A name that matches `SCHEDULE`; "interleaved:v" has v chunks a rank, 2 by default.
        ranks: P, the number of pipeline ranks.

    Raises:
        InputError: There is no schedule of that name.
    """
    if SCHEDULE.fullmatch(schedule) is None:
        schedules = "1f1b, gpipe, zero-bubble, interleaved:2, v, zbv"
        raise InputError(f"schedule {schedule!r}: unknown; use one of {schedules}")
    name, _, count = schedule.partition(":")
    if name == "interleaved":
        return tuple(c % ranks for c in range(int(count or 2) * ranks))
    if name in SHAPED_AS_V and ranks > 1:
        return (*range(ranks), *reversed(range(ranks)))
    return tuple(range(ranks))


def stage_ranks(schedule: str, stages: int) -> tuple[int, ...]:
    """Return the rank of each of `stages` chunks under a schedule; see `chunk_ranks`. [C]"""
    num_chunks = len(chunk_ranks(schedule, 1))
    if schedule.partition(":")[0] in SHAPED_AS_V and stages > 1:
        num_chunks = 2
    return chunk_ranks(schedule, stages // num_chunks)


def limits(schedule: str, ranks: int, microbatches: int) -> tuple[int, ...]:
    """Return how many micro-batches each chunk may keep in flight so that all ranks stay busy. [C]

    With v chunks a rank, a micro-batch takes (C - c) / v periods from its forward pass through
    chunk c to its backward pass there. One more covers what v > 1 leaves uneven. Under GPipe all M
    are in flight.
    """
    chunks = len(chunk_ranks(schedule, ranks))
    if schedule == "gpipe":
        return (microbatches,) * chunks
    if schedule == ZBV and chunks > ranks:
        rows = make_fixed_rows(ZBV, ranks, chunks, microbatches)
        counts = count_most_in_flight(rows.rows, rows.length, rows.apart, chunks)
        return tuple(counts.tolist())
    num_chunks = chunks // ranks
    in_flight = [
        -(-(chunks - c) // num_chunks) + (num_chunks > 1) for c in range(chunks)
    ]
    return tuple(min(limit, microbatches) for limit in in_flight)


def as_arrays(line: Pipeline) -> Line:
    """Return a pipeline as the arrays that the compiled kernels read."""
    seconds = np.array(line.seconds, dtype=np.float64)
    if not line.apart:
        seconds[:, 1] += seconds[:, 2]
    sent = np.array([*line.sent, 0.0], dtype=np.float64)
    rank = np.array(line.rank, dtype=np.int64)
    return Line(rank, seconds, sent, line.microbatches, line.apart)


def time_listed(
    line: Pipeline, rules: Rules, ends: Sequence[float]
) -> tuple[float, LongArray]:
    """Return the step time of a list schedule, and its actions in order of their start.

    Args:
        line: The pipeline that is ordered.
        rules: The limits and preferences of its chunks.
        ends: Seconds of each rank after its last pass. [P]

    Returns:
        Seconds, and chunk, kind and micro-batch of every action. [A, 3]
    """
    limit = np.array(rules.limit, dtype=np.int64)
    late = np.array(rules.late, dtype=np.bool_)
    weights = np.array(rules.weights, dtype=np.bool_)
    seconds, table = run_list_schedule(
        as_arrays(line), limit, late, weights, np.array(ends)
    )
    return float(seconds), table


class ActionRows(NamedTuple):
    """The actions of every rank as arrays.

    Attributes:
        rows: Chunk, kind and micro-batch of every rank's actions in their order; kinds are 0 for F,
            1 for I or B, 2 for W. [P, actions, 3]
        length: Number of actions of every rank. [P]
        apart: Whether I and W are apart.
    """

    rows: LongArray
    length: LongArray
    apart: bool

    def orders(self) -> Orders:
        """Return the actions as tuples. [P][actions]"""
        kinds = (FORWARD, INPUT if self.apart else FULL, WEIGHT)
        orders: list[tuple[Action, ...]] = []
        for rank, length in enumerate(self.length.tolist()):
            rows = self.rows[rank, :length].tolist()
            orders.append(tuple(Action(c, kinds[k], m) for c, k, m in rows))
        return tuple(orders)


def make_order_rows(orders: Sequence[Sequence[Action]], apart: bool) -> ActionRows:
    """Return tuples of actions as arrays.

    Args:
        orders: The actions of every rank, in their order. [P][actions]
        apart: Whether I and W are apart.
    """
    kinds = {FORWARD: 0, INPUT: 1, FULL: 1, WEIGHT: 2}
    length = np.array([len(actions) for actions in orders])
    longest = int(length.max())
    rows = np.zeros((len(orders), longest, 3), dtype=np.int64)
    for rank, actions in enumerate(orders):
        rows[rank, : len(actions)] = [
            (a.chunk, kinds[a.kind], a.microbatch) for a in actions
        ]
    return ActionRows(rows, length, apart)


def make_list_rows(line: Pipeline, listed_actions: LongArray) -> ActionRows:
    """Return the actions that `run_list_schedule` made, by rank.

    Args:
        line: The pipeline that was ordered.
        listed_actions: Chunk, kind and micro-batch in order of their start. [A, 3]
    """
    rank = np.array(line.rank)[listed_actions[:, 0]]
    length = np.bincount(rank, minlength=line.ranks)
    longest = int(length.max(initial=0))
    rows = np.zeros((line.ranks, longest, 3), dtype=np.int64)
    for p, count in enumerate(length.tolist()):
        rows[p, :count] = listed_actions[rank == p]
    return ActionRows(rows, length, line.apart)


def is_apart(schedule: str) -> bool:
    """Return whether a schedule has I and W as passes of their own, and not one pass B."""
    return schedule.partition(":")[0] in ("zero-bubble", *SHAPED_AS_V)


def is_listed(schedule: str) -> bool:
    """Return whether the order of several ranks depends on times: a list schedule makes it."""
    return is_apart(schedule) and schedule != ZBV


@lru_cache(maxsize=256)
def make_fixed_rows(
    schedule: str, ranks: int, chunks: int, microbatches: int, group: int | None = None
) -> ActionRows:
    """Return the actions of a schedule that does not depend on times.

    Args:
        schedule: "1f1b", "gpipe", "interleaved:v" or "zbv".
        ranks: P, the number of pipeline ranks.
        chunks: C, a multiple of P.
        microbatches: M.
        group: Micro-batches that go through a rank's chunk before its next one, P or more; None: P,
            which must divide M where ranks have several chunks.

    Raises:
        InputError: Interleaved where M is no multiple of P.
    """
    num_chunks = chunks // ranks
    if schedule == ZBV and num_chunks > 1:
        rows = v_rows(ranks, microbatches)
        return ActionRows(rows, np.full(ranks, rows.shape[1]), True)
    if num_chunks > 1 and group is None and microbatches % ranks:
        raise InputError(
            f"schedule {schedule}: {microbatches} micro-batches are no multiple of "
            f"{ranks} stages; take another number of micro-batches, or 1f1b"
        )
    rows = take_turns(
        ranks, num_chunks, microbatches, group or ranks, schedule == "gpipe"
    )
    return ActionRows(rows, np.full(ranks, rows.shape[1]), False)


def one_by_one(ranks: int, microbatches: int) -> Orders:
    """Return 1F1B's order: passes in turns, after P - rank - 1 forward passes."""
    return make_fixed_rows("1f1b", ranks, ranks, microbatches).orders()


def make_rank_actions(
    schedule: str, line: Pipeline, *, allows_rest: bool = False
) -> ActionRows:
    """Return every rank's actions under a schedule.

    Args:
        schedule: The name of the schedule.
        line: The pipeline that is ordered.
        allows_rest: Whether interleaved ranks may have micro-batches that their number does not
            divide. The least group is taken from P on of which no rest is smaller than P, as
            Megatron-LM asks of `--microbatch-group-size-per-virtual-pipeline-stage`, and PyTorch's
            `ScheduleInterleaved1F1B` makes its rounds.

    Raises:
        InputError: Interleaved where M is no multiple of P.
    """
    if is_apart(schedule) and (schedule != ZBV or line.ranks == 1):
        return make_list_rows(
            line, time_listed(line, usual(line), [0.0] * line.ranks)[1]
        )
    ranks = line.ranks
    count = line.microbatches
    group = None
    if allows_rest:
        groups = range(ranks, count + 1)
        group = next((n for n in groups if not 0 < count % n < ranks), None)
    return make_fixed_rows(schedule, ranks, len(line.rank), count, group)


def time_rows(line: Pipeline, actions: ActionRows, ends: Sequence[float]) -> float:
    """Return the step time of given actions, as the simulator has it where nothing blocks.

    Args:
        line: The pipeline that is ordered: ranks, seconds, messages.
        actions: Actions of every rank, in their order.
        ends: Seconds of each rank after its last pass. [P]
    """
    return float(
        replay_orders(as_arrays(line), actions.rows, actions.length, np.array(ends))
    )


def count_in_flight(actions: Sequence[Action], chunks: int) -> list[int]:
    """Return the most micro-batches that each chunk keeps at once, in a rank's order. [chunks]"""
    live = [0] * chunks
    largest = [0] * chunks
    for action in actions:
        if action.kind == FORWARD:
            live[action.chunk] += 1
            largest[action.chunk] = max(largest[action.chunk], live[action.chunk])
        elif action.kind in (WEIGHT, FULL):
            live[action.chunk] -= 1
    return largest


F, I, W = range(3)  # noqa: E741 (the names of the passes)


class Line(NamedTuple):
    """A pipeline as arrays.

    Attributes:
        rank: Rank of each chunk. [C]
        seconds: Seconds of F, I and W of each chunk; I holds both if W is not apart. [C, 3]
        sent: Seconds of a message from each chunk to the next. [C]
        microbatches: M, the number of micro-batches of a step.
        apart: Whether I and W are passes of their own.
    """

    rank: LongArray
    seconds: FloatArray
    sent: FloatArray
    microbatches: int
    apart: bool


@numba.njit(cache=True)
def run_list_schedule(
    line: Line, limit: LongArray, late: BoolArray, weights: BoolArray, ends: FloatArray
) -> tuple[float, LongArray]:
    """Run a list schedule and return its step time and its actions.

    A rank that is free takes what is ready, the most urgent first; see the module's text.

    Args:
        line: The pipeline that is ordered: ranks, seconds, messages.
        limit: The most micro-batches that each chunk may have in flight. [C]
        late: Whether each chunk's forward passes come before backward ones. [C]
        weights: Whether each chunk's weight gradients come before forward passes. [C]
        ends: Seconds of each rank after its last pass. [P]

    Returns:
        Seconds, and chunk, kind and micro-batch of every action in order of its start. [A, 3]
    """
    chunks = len(line.rank)
    ranks = len(ends)
    count = line.microbatches
    kinds = 3 if line.apart else 2
    arrival = np.full((chunks, 3, count), np.inf)
    arrival[0, F, :] = 0.0
    # The next micro-batch of each kind of pass.
    following = np.zeros((chunks, 3), dtype=np.int64)
    flying = np.zeros(chunks, dtype=np.int64)
    queue = RankQueue(arrival, following, flying, limit, late, weights)
    free = np.zeros(ranks)
    channel = np.zeros((ranks, ranks))
    table = np.zeros((chunks * kinds * count, 3), dtype=np.int64)
    # An event is a time at which a rank may have something to run.
    events = [(0.0, np.int64(line.rank[0]))]
    num_done = 0
    while len(events) > 0:
        instant, p = heapq.heappop(events)
        if free[p] > instant:
            continue
        c, k = _next_pass(line, p, instant, queue)
        if c < 0:
            continue
        # Run the pass, and count what it begins or ends as in flight.
        m = following[c, k]
        following[c, k] += 1
        table[num_done, 0] = c
        table[num_done, 1] = k
        table[num_done, 2] = m
        num_done += 1
        end = instant + line.seconds[c, k]
        free[p] = end
        heapq.heappush(events, (end, np.int64(p)))
        if k == F:
            flying[c] += 1
        elif k == W or not line.apart:
            flying[c] -= 1
        # What the pass makes may wake the rank that it goes to.
        to = _announce(line, arrival, channel, c, k, m, end)
        if to >= 0:
            heapq.heappush(events, (arrival[to, k, m], np.int64(line.rank[to])))
    return (free + ends).max(), table[:num_done]


class RankQueue(NamedTuple):
    """The state by which a free rank chooses the pass that it runs next.

    Attributes:
        arrival: Seconds from which each pass may begin; inf if that is not known yet. [C, 3, M]
        following: The next micro-batch of each kind of pass. [C, 3]
        flying: Micro-batches in flight on each chunk. [C]
        limit: The most micro-batches in flight on each chunk. [C]
        late: Whether each chunk's forward passes come before backward ones. [C]
        weights: Whether each chunk's weight gradients come before forward passes. [C]
    """

    arrival: FloatArray
    following: LongArray
    flying: LongArray
    limit: LongArray
    late: BoolArray
    weights: BoolArray


@numba.njit(cache=True)
def _next_pass(line: Line, p: int, now: float, queue: RankQueue) -> tuple[int, int]:
    """Return chunk and kind of the pass that a free rank runs next; -1 if nothing is ready.

    Args:
        line: The pipeline that is ordered.
        p: The rank.
        now: Seconds since the step began.
        queue: What is ready, and what is preferred.
    """
    arrival = queue.arrival
    following = queue.following
    flying = queue.flying
    limit = queue.limit
    late = queue.late
    weights = queue.weights
    best_c = -1
    best_k = -1
    best_u = 9
    best_m = 0
    for c in range(len(line.rank) - 1, -1, -1):
        if line.rank[c] != p:
            continue
        for k in range(3):
            m = following[c, k]
            if m >= line.microbatches or arrival[c, k, m] > now:
                continue
            if k == F and flying[c] >= limit[c]:
                continue
            if k == I:
                urgency = 1
            elif k == F:
                urgency = 0 if late[c] else 3
            else:
                if weights[c]:
                    urgency = 2
                else:
                    urgency = 4
            if urgency < best_u or (urgency == best_u and m < best_m):
                best_c = c
                best_k = k
                best_u = urgency
                best_m = m
    return best_c, best_k


@numba.njit(cache=True)
def _announce(
    line: Line,
    arrival: FloatArray,
    channel: FloatArray,
    c: int,
    k: int,
    m: int,
    end: float,
) -> int:
    """Set the time from which what follows a pass may run.

    The next pass on the same chunk may begin when this one ends. The neighbour's pass may begin
    when the message is there, which waits for earlier ones on its channel. `arrival` and `channel`
    are changed.

    Returns:
        The chunk that the result goes to; -1 if it goes to none.
    """
    last = len(line.rank) - 1
    if k == F and c == last:
        arrival[c, I, m] = end
    elif k == I and line.apart:
        arrival[c, W, m] = end
    to = c + 1 if k == F else c - 1
    if k == W or to < 0 or to > last:
        return -1
    p = line.rank[c]
    q = line.rank[to]
    instant = end
    if p != q:
        instant = max(end, channel[p, q]) + line.sent[min(c, to)]
        channel[p, q] = instant
    arrival[to, k, m] = instant
    return to


@numba.njit(cache=True)
def _turn(number: int, each: int, microbatches: int, group: int) -> tuple[int, int]:
    """Return the chunk and the micro-batch of a rank's forward pass of some number.

    `group` micro-batches go through the first of a rank's `each` chunks, then through its next. The
    last group may be smaller.

    Args:
        number: Number of the forward pass on its rank, from 0 on.
        each: Chunks of a rank.
        microbatches: M, the number of micro-batches of a step.
        group: Micro-batches of a group.

    Returns:
        Number of the chunk on its rank, and the micro-batch.
    """
    if each == 1:
        return 0, number
    full_groups = microbatches // group * group
    if number < full_groups * each:
        round_index = number // (group * each)
        within = number % (group * each)
        return within // group, round_index * group + within % group
    within = number - full_groups * each
    size = microbatches - full_groups
    return within // size, full_groups + within % size


@numba.njit(cache=True)
def take_turns(
    ranks: int, each: int, microbatches: int, group: int, forward_first: bool
) -> LongArray:
    """Return the actions of 1F1B, of GPipe, or of Megatron-LM's order of several chunks a rank.

    A rank of several chunks runs 2 (P - rank - 1) + (v - 1) group forward passes ahead, a rank of
    one chunk P - rank - 1; then a forward and a backward pass in turns.

    Args:
        ranks: P, the number of pipeline ranks.
        each: Chunks of a rank, called v above.
        microbatches: M, the number of micro-batches of a step.
        group: Micro-batches that go through a rank's chunk before its next one.
        forward_first: Whether all forward passes come before all backward ones.

    Returns:
        Chunk, kind and micro-batch of every rank's actions in order. [P, 2 v M, 3]
    """
    total = each * microbatches
    rows = np.zeros((ranks, 2 * total, 3), dtype=np.int64)
    for rank in range(ranks):
        ahead = ranks - rank - 1
        if each > 1:
            ahead = 2 * ahead + (each - 1) * group
        if forward_first or ahead > total:
            ahead = total
        place = 0
        for number in range(total + ahead):
            # The forward pass of this number, then the backward pass that is due with it.
            if number < total:
                chunk, microbatch = _turn(number, each, microbatches, group)
                rows[rank, place, 0] = chunk * ranks + rank
                rows[rank, place, 2] = microbatch
                place += 1
            if number >= ahead:
                chunk, microbatch = _turn(number - ahead, each, microbatches, group)
                rows[rank, place, 0] = (each - 1 - chunk) * ranks + rank
                rows[rank, place, 1] = 1
                rows[rank, place, 2] = microbatch
                place += 1
    return rows


def v_rows(ranks: int, microbatches: int) -> LongArray:
    """Return the actions of ZB-V as PyTorch's `ScheduleZBVZeroBubble` lists them.

    The list is of 2 P - 1 micro-batches at least; passes of those that a step does not have are
    left out of it.

    Args:
        ranks: P, the number of pipeline ranks.
        microbatches: M, the number of micro-batches of a step.

    Returns:
        Chunk, kind and micro-batch of every rank's actions in order. [P, 6 M, 3]
    """
    first, second = np.arange(3), 3 + np.arange(3)  # passes of both chunks by kind
    num_listed = max(2 * ranks - 1, microbatches)
    rows = np.zeros((ranks, 6 * microbatches, 3), dtype=np.int64)
    for rank in range(ranks):
        later = ranks - rank
        all_passes = np.concatenate(
            [
                # The pipeline is filled.
                np.tile(first[F], 2 * later - 1),
                np.tile([second[F], first[F]], rank),
                np.tile(second, later),
                # Both chunks take turns, at last without new micro-batches.
                np.tile([*first, *second], num_listed - ranks - later + 1),
                np.tile([first[I], first[W], *second], later - 1),
                # Gradients of weights wait until no other pass does.
                np.tile([first[I], second[I]], rank),
                np.tile([first[I], first[W]], later),
                np.tile(second[W], rank),
                np.tile(first[W], rank),
            ]
        ).astype(np.int64)
        number = np.zeros(len(all_passes), dtype=np.int64)
        for kind in range(6):
            is_kind = all_passes == kind
            number[is_kind] = np.arange(is_kind.sum())
        passes = all_passes[number < microbatches]
        rows[rank, :, 0] = np.where(passes < 3, rank, 2 * ranks - 1 - rank)
        rows[rank, :, 1] = passes % 3
        rows[rank, :, 2] = number[number < microbatches]
    return rows


@numba.njit(cache=True)
def count_most_in_flight(
    rows: LongArray, length: LongArray, apart: bool, chunks: int
) -> LongArray:
    """Return the most micro-batches that each chunk keeps at once. [C]

    Args:
        rows: Chunk, kind and micro-batch of every rank's actions in order. [P, actions, 3]
        length: Number of actions of every rank. [P]
        apart: Whether I and W are apart.
        chunks: C, the number of chunks.
    """
    flying = np.zeros(chunks, dtype=np.int64)
    largest = np.zeros(chunks, dtype=np.int64)
    for p in range(len(rows)):
        for k in range(length[p]):
            chunk = rows[p, k, 0]
            kind = rows[p, k, 1]
            if kind == F:
                flying[chunk] += 1
                largest[chunk] = max(largest[chunk], flying[chunk])
            elif kind == W or not apart:
                flying[chunk] -= 1
    return largest


@numba.njit(cache=True)
def find_peak_saved(
    rows: LongArray, length: LongArray, apart: bool, saved: FloatArray
) -> FloatArray:
    """Return the most bytes that each rank keeps for backward passes at one instant. [P]

    Args:
        rows: Chunk, kind and micro-batch of every rank's actions in order. [P, actions, 3]
        length: Number of actions of every rank. [P]
        apart: Whether I and W are apart.
        saved: Bytes that a micro-batch in flight keeps on each chunk. [C]
    """
    largest = np.zeros(len(rows))
    for p in range(len(rows)):
        live = 0.0
        for k in range(length[p]):
            chunk = rows[p, k, 0]
            kind = rows[p, k, 1]
            if kind == F:
                live += saved[chunk]
                largest[p] = max(largest[p], live)
            elif kind == W or not apart:
                live -= saved[chunk]
    return largest


@numba.njit(cache=True)
def replay_orders(
    line: Line, rows: LongArray, length: LongArray, ends: FloatArray
) -> float:
    """Return the step time of given orders; inf if ranks wait for each other for ever.

    Args:
        line: The pipeline that is ordered: ranks, seconds, messages.
        rows: Chunk, kind and micro-batch of every rank's actions in order. [P, actions, 3]
        length: Number of actions of every rank. [P]
        ends: Seconds of each rank after its last pass. [P]
    """
    chunks = len(line.rank)
    ranks = len(ends)
    count = line.microbatches
    arrival = np.full((chunks, 3, count), np.inf)
    arrival[0, F, :] = 0.0
    free = np.zeros(ranks)
    channel = np.zeros((ranks, ranks))
    place = np.zeros(ranks, dtype=np.int64)
    has_progress = True
    while has_progress:
        has_progress = False
        for p in range(ranks):
            while place[p] < length[p]:
                c, k, m = rows[p, place[p]]
                if arrival[c, k, m] == np.inf:
                    break
                end = max(free[p], arrival[c, k, m]) + line.seconds[c, k]
                free[p] = end
                has_progress = True
                place[p] += 1
                _announce(line, arrival, channel, c, k, m, end)
    if (place == length).all():
        return (free + ends).max()
    return np.inf
