"""The order of actions: which pass of which micro-batch every rank of a pipeline runs next.

A pipeline of C chunks on P ranks runs for every chunk and micro-batch a forward pass F, the
gradients of activations I and those of weights W (or B, both at once). All orders but interleaved's
come from one list schedule: a rank takes what is ready, I before F before W, and no F while as many
micro-batches are in flight on that chunk as its limit says. What differs is the limits, and which
rank has which chunk:

* 1f1b (Narayanan et al., 2021, arXiv 2104.04473): chunk c on rank c, P - c in flight, B;
* zero-bubble (Qi et al., 2024, arXiv 2401.10241, ZB-H1): the same with I and W apart, W where
  nothing else is ready: the memory is that of 1f1b;
* interleaved:v (2104.04473, section 2.2): v P chunks, chunk c on rank c mod P, in Megatron-LM's
  order: P micro-batches through one chunk, then through the next; M is a multiple of P;
* v (2401.10241, section 5): 2 P chunks, chunk c on rank c and 2 P - 1 - c on the same.

Complexity: O(C M log(C M)) for M micro-batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gnnplace.errors import InputError

FORWARD, INPUT, WEIGHT, FULL = "F", "I", "W", "B"
SCHEDULES = ("1f1b", "zero-bubble", "interleaved", "v")


class Action(NamedTuple):
    """A pass of a micro-batch through a chunk."""

    chunk: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class Pipeline:
    """What an order is made for.

    Attributes:
        rank: of each chunk. [C]
        seconds: of F, I and W of each chunk. [C]
        sent: seconds of a message from each chunk to the next. [C - 1]
        microbatches: M.
        apart: whether I and W are apart.
        limit: micro-batches that each chunk may have in flight. [C]
    """

    rank: tuple[int, ...]
    seconds: tuple[tuple[float, float, float], ...]
    sent: tuple[float, ...]
    microbatches: int
    apart: bool
    limit: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """P."""
        return max(self.rank) + 1

    def between(self, chunk: int) -> float:
        """Seconds of a message from a chunk to the next; none on the same rank."""
        return 0.0 if self.rank[chunk] == self.rank[chunk + 1] else self.sent[chunk]


def chunk_ranks(schedule: str, ranks: int) -> tuple[int, ...]:
    """Rank of every chunk under a schedule.

    Args:
        schedule: one of `SCHEDULES`; "interleaved:v" has v chunks a rank, 2 by default.
        ranks: P.

    Raises:
        InputError: no such schedule.
    """
    name, _, count = schedule.partition(":")
    if name not in SCHEDULES or (count and (name != "interleaved" or not count.isdecimal())):
        known = "1f1b, zero-bubble, interleaved:2, v"
        raise InputError(f"schedule {schedule!r}: unknown; use one of {known}")
    if name == "interleaved":
        return tuple(c % ranks for c in range(int(count or 2) * ranks))
    if name == "v" and ranks > 1:
        return (*range(ranks), *reversed(range(ranks)))
    return tuple(range(ranks))


def limits(schedule: str, ranks: int, microbatches: int) -> tuple[int, ...]:
    """Micro-batches that each chunk may keep in flight: what keeps all ranks busy. [C]

    With v chunks a rank, a micro-batch takes (C - c) / v periods from its forward pass through
    chunk c to its backward pass there; one more covers what v > 1 leaves uneven.
    """
    chunks = len(chunk_ranks(schedule, ranks))
    each = chunks // ranks
    found = [-(-(chunks - c) // each) + (each > 1) for c in range(chunks)]
    return tuple(min(limit, microbatches) for limit in found)


@dataclass(eq=False)
class _Run:
    """State of one list schedule; times are seconds.

    Attributes:
        line: what is scheduled.
        flying: micro-batches in flight on each chunk. [C]
        pending: what each rank could run. [P]
        waiting: what arrives later: time, number, action.
        made: orders so far. [P]
        free: when each rank is. [P]
    """

    line: Pipeline
    flying: list[int] = field(init=False)
    pending: list[list[Action]] = field(init=False)
    made: list[list[Action]] = field(init=False)
    free: list[float] = field(init=False)
    waiting: list[tuple[float, int, Action]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        ranks = range(self.line.ranks)
        self.flying = [0] * len(self.line.rank)
        self.pending, self.made = [[] for _ in ranks], [[] for _ in ranks]
        self.free = [0.0 for _ in ranks]

    def arrives(self, time: float, chunk: int, kind: str, microbatch: int) -> None:
        """An action may run from a time on."""
        self.count += 1
        heapq.heappush(self.waiting, (time, self.count, Action(chunk, kind, microbatch)))

    def deliver(self, now: float) -> set[int]:
        """Moves what has arrived to its rank; the ranks."""
        woken = set()
        while self.waiting and self.waiting[0][0] <= now:
            action = heapq.heappop(self.waiting)[2]
            rank = self.line.rank[action.chunk]
            self.pending[rank].append(action)
            woken.add(rank)
        return woken

    def take(self, rank: int) -> Action | None:
        """What a rank runs next."""
        line, flying = self.line, self.flying
        open_ = [
            a
            for a in self.pending[rank]
            if a.kind != FORWARD or flying[a.chunk] < line.limit[a.chunk]
        ]
        if not open_:
            return None
        action = min(open_, key=_urgency)
        self.pending[rank].remove(action)
        return action

    def start(self, action: Action, rank: int, now: float) -> None:
        """Runs an action and announces what may follow."""
        line, (chunk, kind, m) = self.line, action
        forward, inputs, weights = line.seconds[chunk]
        taken = {FORWARD: forward, INPUT: inputs, WEIGHT: weights, FULL: inputs + weights}[kind]
        end = now + taken
        self.free[rank] = end
        self.made[rank].append(action)
        back = INPUT if line.apart else FULL
        if kind == FORWARD:
            self.flying[chunk] += 1
            on = chunk + 1 < len(line.rank)
            arrival = end + (line.between(chunk) if on else 0.0)
            self.arrives(arrival, chunk + on, FORWARD if on else back, m)
        if kind in (WEIGHT, FULL):
            self.flying[chunk] -= 1
        if kind == INPUT:
            self.arrives(end, chunk, WEIGHT, m)
        if kind in (INPUT, FULL) and chunk > 0:
            self.arrives(end + line.between(chunk - 1), chunk - 1, back, m)


def _urgency(action: Action) -> tuple[int, int, int]:
    """Backward first, then forward, then weights; the older micro-batch, then the later chunk."""
    kind = {FULL: 0, INPUT: 0, FORWARD: 1, WEIGHT: 2}[action.kind]
    return kind, action.microbatch, -action.chunk


def ordered(line: Pipeline) -> tuple[tuple[Action, ...], ...]:
    """Every rank's order by one list schedule. [P][actions]"""
    run = _Run(line)
    for m in range(line.microbatches):
        run.arrives(0.0, 0, FORWARD, m)
    done: list[tuple[float, int]] = []  # when ranks become free
    while done or run.waiting:
        now = min(queue[0][0] for queue in (done, run.waiting) if queue)
        woken = run.deliver(now)
        while done and done[0][0] <= now:
            woken.add(heapq.heappop(done)[1])
        for rank in sorted(woken):
            action = run.take(rank) if run.free[rank] <= now else None
            if action is not None:
                run.start(action, rank, now)
                heapq.heappush(done, (run.free[rank], rank))
    return tuple(tuple(actions) for actions in run.made)


def interleaved(ranks: int, chunks: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """Megatron-LM's order of v chunks a rank.

    Args:
        ranks: P.
        chunks: C, a multiple of P.
        microbatches: M, a multiple of P.
    """
    each, total = chunks // ranks, chunks // ranks * microbatches

    def turn(number: int) -> tuple[int, int]:
        """Chunk of the rank, and micro-batch, of its pass of some number."""
        group, within = divmod(number, ranks * each)
        return within // ranks, group * ranks + within % ranks

    made = []
    for rank in range(ranks):
        ahead = min(2 * (ranks - rank - 1) + (each - 1) * ranks, total)
        forward, backward = [], []
        for number in range(total):
            chunk, m = turn(number)
            forward.append(Action(chunk * ranks + rank, FORWARD, m))
            backward.append(Action((each - 1 - chunk) * ranks + rank, FULL, m))
        turns = [a for pair in zip(forward[ahead:], backward, strict=False) for a in pair]
        made.append((*forward[:ahead], *turns, *backward[total - ahead :]))
    return tuple(made)


def order_of(schedule: str, line: Pipeline) -> tuple[tuple[Action, ...], ...]:
    """Every rank's order under a schedule.

    Raises:
        InputError: interleaved where M is no multiple of P.
    """
    if not schedule.startswith("interleaved"):
        return ordered(line)
    if line.microbatches % line.ranks:
        raise InputError(
            f"schedule {schedule}: {line.microbatches} micro-batches are no multiple of "
            f"{line.ranks} stages; take another number of micro-batches, or 1f1b"
        )
    return interleaved(line.ranks, len(line.rank), line.microbatches)


def in_flight(actions: Sequence[Action], chunks: int) -> list[int]:
    """Most micro-batches that each chunk keeps at once, in a rank's order. [chunks]"""
    held, most = [0] * chunks, [0] * chunks
    for action in actions:
        if action.kind == FORWARD:
            held[action.chunk] += 1
            most[action.chunk] = max(most[action.chunk], held[action.chunk])
        elif action.kind in (WEIGHT, FULL):
            held[action.chunk] -= 1
    return most
