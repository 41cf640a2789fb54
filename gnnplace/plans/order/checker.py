"""The checker of actions: whether the rows of a plan can run, and do the work of one step.

PyTorch's loader takes rows as they come: a pass that is missing or done twice, messages in another
order than they are sent, or forward passes of the last stage out of order give wrong gradients
without an error, and a missing message hangs for as long as the process group waits. So a plan is
checked before anything starts:

1. every stage runs on its rank, every F once a micro-batch, and B once or I and then W once;
2. forward passes of a stage that changes with every pass (the last, whose losses are counted) are
   in the order of micro-batches;
3. every message that a pass needs is sent once and received once, on the ranks of its stages;
4. what is sent on a channel (from one rank to another) first is received first;
5. an abstract run, in which a receive waits for its send and nothing else waits, comes to its end;
6. what each rank keeps in flight is counted, for the plan's memory to be held against.

Complexity: O(A P) for A actions on P ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gnnplace.errors import FormatError
from gnnplace.plans.order.orders import (
    FORWARD,
    FULL,
    INPUT,
    WEIGHT,
    Action,
    count_in_flight,
)
from gnnplace.plans.order.rows import (
    MESSAGES,
    PASSES,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    Row,
    find_needed_passes,
    is_done,
    message_after,
)

SENT = {RECV_F: (-1, SEND_F), RECV_B: (1, SEND_B)}


@dataclass(frozen=True)
class Checked:
    """Rows of actions that passed every check.

    Attributes:
        rows: The actions of every rank, in order. [P]
        flying: The most micro-batches that each stage keeps in flight. [stages]
        live: The most bytes of activations that each rank keeps at once; empty if no `saved` bytes
            were given. [P]
    """

    rows: tuple[Row, ...]
    flying: tuple[int, ...]
    live: tuple[float, ...] = ()


def check_actions(
    rows: Sequence[Row],
    ranks: Sequence[int],
    microbatches: int,
    source: str = "plan",
    *,
    saved: Sequence[float] = (),
) -> Checked:
    """Check that rows of actions can run and do the work of one step.

    Args:
        rows: The actions of every rank, messages included.
        ranks: The pipeline rank of every stage.
        microbatches: M, the number of micro-batches of a step.
        source: Where the rows come from, which error messages begin with.
        saved: Bytes that each stage keeps for one micro-batch in flight. [stages]

    Returns:
        The rows, with what is in flight at most.

    Raises:
        FormatError: An action is wrong or missing; one line says which, and why.
    """
    _places(rows, ranks, microbatches, source)
    _complete(rows, ranks, microbatches, source)
    _check_forward_order(rows, ranks, source)
    _match_messages(rows, ranks, source)
    _first_in_first_out(rows, ranks, source)
    _runs(rows, ranks, source)
    flying = [0] * len(ranks)
    for row in rows:
        flying = [
            max(a, b)
            for a, b in zip(flying, count_in_flight(row, len(ranks)), strict=True)
        ]
    if saved:
        live = tuple(live_bytes(row, saved) for row in rows)
    else:
        live = ()
    return Checked(tuple(rows), tuple(flying), live)


def _fault(source: str, rows: Sequence[Row], action: Action, why: str) -> FormatError:
    """Return an error that names an action and, if the rows have it, its row and position."""
    places = []
    for p, row in enumerate(rows):
        for k, a in enumerate(row):
            if a == action:
                places.append((p, k))
    if places:
        position = "[{}][{}]".format(*places[-1])
    else:
        position = ""
    return FormatError(f"{source}: actions{position}: {action} {why}")


def _places(rows: Sequence[Row], ranks: Sequence[int], count: int, source: str) -> None:
    """Check that every action is of a known stage and micro-batch, and on the stage's rank.

    Raises:
        FormatError: An action is elsewhere, or the number of rows is not that of the ranks.
    """
    if len(rows) != max(ranks) + 1:
        raise FormatError(
            f"{source}: actions: {len(rows)} rows for {max(ranks) + 1} ranks; give each its row"
        )
    for p, row in enumerate(rows):
        for action in row:
            if action.chunk >= len(ranks):
                raise _fault(
                    source, rows, action, f"is of stage {action.chunk} of {len(ranks)}"
                )
            if ranks[action.chunk] != p:
                owner = ranks[action.chunk]
                raise _fault(
                    source, rows, action, f"is in row {p}; its stage is on rank {owner}"
                )
            if action.microbatch >= count:
                raise _fault(
                    source,
                    rows,
                    action,
                    f"is of micro-batch {action.microbatch}, of {count}",
                )


def _complete(
    rows: Sequence[Row], ranks: Sequence[int], count: int, source: str
) -> None:
    """Check that every stage runs each micro-batch once: F, and either B or both I and W.

    Raises:
        FormatError: A pass is missing, is repeated, or B stands beside I or W.
    """
    counts = Counter(a for row in rows for a in row if a.kind in PASSES)
    for action, times in counts.items():
        if times > 1:
            raise _fault(source, rows, action, f"is there {times} times; once is right")
    for stage in range(len(ranks)):
        for m in range(count):
            kinds = {k for k in PASSES if Action(stage, k, m) in counts}
            if FORWARD not in kinds:
                why = f"is missing: batch over microbatch_size and replicas is {count}"
                raise _fault(source, rows, Action(stage, FORWARD, m), why)
            if FULL in kinds and kinds & {INPUT, WEIGHT}:
                why = "is there beside I or W of its micro-batch: gradients would count twice"
                raise _fault(source, rows, Action(stage, FULL, m), why)
            if FULL not in kinds and kinds != {FORWARD, INPUT, WEIGHT}:
                if INPUT in kinds:
                    lost = WEIGHT
                elif WEIGHT in kinds:
                    lost = INPUT
                else:
                    lost = FULL
                raise _fault(source, rows, Action(stage, lost, m), "is missing")


def _check_forward_order(
    rows: Sequence[Row], ranks: Sequence[int], source: str
) -> None:
    """Check that forward passes of every stage go in the order of micro-batches.

    The last stage counts its losses in this order; running statistics and random numbers follow it
    too.

    Raises:
        FormatError: A forward pass comes after one of a later micro-batch.
    """
    for stage, rank in enumerate(ranks):
        forwards = [a for a in rows[rank] if a.chunk == stage and a.kind == FORWARD]
        for action, following in pairwise(forwards):
            if following.microbatch < action.microbatch:
                why = f"comes after {action}; forward passes go in the order of micro-batches"
                raise _fault(source, rows, following, why)


def _match_messages(rows: Sequence[Row], ranks: Sequence[int], source: str) -> None:
    """Check that every message that a stage needs is sent and received once, and no other is.

    Raises:
        FormatError: A message is missing, is repeated, or is needed by no stage.
    """
    counts = Counter(a for row in rows for a in row if a.kind in MESSAGES)
    wanted = set[Action]()
    for row in rows:
        for action in row:
            if action.kind in PASSES:
                message = message_after(action, ranks)
            else:
                message = None
            wanted.update(message or ())
    for action in sorted(wanted):
        if not counts[action]:
            raise _fault(source, rows, action, "is missing")
    for action, times in counts.items():
        if action not in wanted:
            raise _fault(source, rows, action, "is of a message that no stage needs")
        if times > 1:
            raise _fault(source, rows, action, f"is there {times} times; once is right")


def sender(action: Action) -> Action:
    """Return the send that a receive waits for."""
    step, kind = SENT[action.kind]
    return Action(action.chunk + step, kind, action.microbatch)


def _first_in_first_out(rows: Sequence[Row], ranks: Sequence[int], source: str) -> None:
    """Check that each rank receives messages of another in the order in which that rank sends them.

    Raises:
        FormatError: Two messages change their order on the way.
    """
    for target, row in enumerate(rows):
        received = [a for a in row if a.kind in SENT]
        for origin in {ranks[sender(a).chunk] for a in received}:
            from_origin = [a for a in received if ranks[sender(a).chunk] == origin]
            awaited = {sender(a) for a in from_origin}
            sent = [a for a in rows[origin] if a in awaited]
            for got, send in zip(from_origin, sent, strict=True):
                if sender(got) != send:
                    way = f"from rank {origin} to rank {target}"
                    why = f"receives what is sent as {send}: messages {way} keep their order"
                    raise _fault(source, rows, got, why)


def _runs(rows: Sequence[Row], ranks: Sequence[int], source: str) -> None:
    """Check that the rows come to their end if every action waits for those that it needs.

    Raises:
        FormatError: There is a deadlock; the message says where each rank waits and for what.
    """
    place = [0] * len(rows)
    finished = set[Action]()
    moving = True
    while moving:
        moving = False
        for p, row in enumerate(rows):
            while (
                place[p] < len(row) and _lacks(row[place[p]], ranks, finished) is None
            ):
                finished.add(row[place[p]])
                place[p] += 1
                moving = True
    stuck = []
    for rank, position in enumerate(place):
        if position < len(rows[rank]):
            stuck.append((rank, rows[rank][position]))
    if stuck:
        blocked = ", ".join(
            f"rank {p} at {a} for {_lacks(a, ranks, finished)}" for p, a in stuck
        )
        raise FormatError(f"{source}: actions: a deadlock; waiting for ever: {blocked}")


def _lacks(action: Action, ranks: Sequence[int], done: set[Action]) -> Action | None:
    """Return the first action that another still waits for; None if it can run."""
    for needed in _before(action, ranks):
        if not is_done(needed, done):
            return needed
    return None


def _before(action: Action, ranks: Sequence[int]) -> list[Action]:
    """Return the actions that must come before one, on its own rank or as the send of a receive."""
    stage, kind, m = action
    if kind in SENT:
        return [sender(action)]
    if kind == SEND_F:
        return [Action(stage, FORWARD, m)]
    if kind == SEND_B:
        return [Action(stage, INPUT, m)]
    preceding = []
    for needed in find_needed_passes(action, len(ranks)):
        if ranks[needed.chunk] == ranks[stage]:
            preceding.append(needed)
        else:
            preceding.append(Action(stage, RECV_F if kind == FORWARD else RECV_B, m))
    return preceding


def live_bytes(row: Row, saved: Sequence[float]) -> float:
    """Return the most bytes of activations that a rank keeps at once.

    Args:
        row: The actions of the rank, in order.
        saved: Bytes that each stage keeps for a micro-batch, from F to B or W. [stages]
    """
    live = 0.0
    largest = 0.0
    for action in row:
        if action.kind == FORWARD:
            live += saved[action.chunk]
            largest = max(largest, live)
        elif action.kind in (FULL, WEIGHT):
            live -= saved[action.chunk]
    return largest
