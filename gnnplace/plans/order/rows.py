"""Rows of actions: what every pipeline rank does, in the words of PyTorch's schedules.

A row is a list of actions: stage, kind, micro-batch. `2F0` is the forward pass of micro-batch 0 on
stage 2. I computes gradients of activations, W those of weights, B both at once. `2SEND_F0` sends
the result of 2F0 to stage 3, where `3RECV_F0` receives it; `3SEND_B0` sends its gradient back,
which `2RECV_B0` receives. Stages on one rank need no messages.

Messages between two ranks have no names: they are received in the order in which they are sent.
`with_messages` runs the passes in an order that the rows allow and inserts every send and its
receive into both rows at once. So both ranks have their messages in the same order, and ranks never
wait for each other in a circle.

PyTorch's loader (`torch.distributed.pipelining.schedules`) reads the same actions. A plan has none
of those that PyTorch adds for FSDP (UNSHARD, RESHARD, REDUCE_GRAD): a stage's `zero` says it all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gnnplace.errors import FormatError
from gnnplace.plans.order.orders import FORWARD, FULL, INPUT, WEIGHT, Action

SEND_F = "SEND_F"
RECV_F = "RECV_F"
SEND_B = "SEND_B"
RECV_B = "RECV_B"
PASSES = (FORWARD, FULL, INPUT, WEIGHT)
MESSAGES = (SEND_F, RECV_F, SEND_B, RECV_B)
WORD = re.compile(r"([0-9]{1,9})(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)([0-9]{1,9})")
Row = tuple[Action, ...]


class StageMessage(NamedTuple):
    """A message from one stage to its neighbour.

    Attributes:
        send: The action of the stage that sends.
        receive: The action of the stage that receives.
    """

    send: Action
    receive: Action


def parse_rows(rows: Sequence[Sequence[str]], source: str) -> tuple[Row, ...]:
    """Parse the words of every rank's row into actions.

    Args:
        rows: The words of each rank.
        source: Where the rows come from, which error messages begin with.

    Raises:
        FormatError: A word is no action; the message names it and its place.
    """
    return tuple(
        tuple(
            _action(word, f"{source}: actions[{p}][{k}]") for k, word in enumerate(row)
        )
        for p, row in enumerate(rows)
    )


def _action(word: str, where: str) -> Action:
    match = WORD.fullmatch(word)
    if match is None:
        raise FormatError(
            f"{where}: {word[:40]!r} is no action; write the stage, one of "
            f"{', '.join((*PASSES, *MESSAGES))}, and the micro-batch, as in 0F0"
        )
    return Action(int(match[1]), match[2], int(match[3]))


def iterate_passes(row: Sequence[str]) -> Iterator[Action]:
    """Return an iterator over the passes among a row's words; messages are left out."""
    matches = (WORD.fullmatch(word) for word in row)
    return (
        Action(int(x[1]), x[2], int(x[3]))
        for x in matches
        if x is not None and x[2] in PASSES
    )


def message_after(action: Action, ranks: Sequence[int]) -> StageMessage | None:
    """Return the message that follows a pass; None if nothing leaves the rank.

    Args:
        action: A forward or backward pass.
        ranks: The pipeline rank of every stage.
    """
    stage, kind, m = action
    if kind == FORWARD and stage + 1 < len(ranks) and ranks[stage] != ranks[stage + 1]:
        return StageMessage(Action(stage, SEND_F, m), Action(stage + 1, RECV_F, m))
    if kind in (INPUT, FULL) and stage > 0 and ranks[stage] != ranks[stage - 1]:
        return StageMessage(Action(stage, SEND_B, m), Action(stage - 1, RECV_B, m))
    return None


def find_needed_passes(action: Action, stages: int) -> tuple[Action, ...]:
    """Return the passes that must be done before one, whichever rows they stand in.

    A backward pass needs its own forward pass, and I or B of the next stage.
    """
    stage, kind, m = action
    if kind == FORWARD:
        if stage:
            return (Action(stage - 1, FORWARD, m),)
        return ()
    if kind == WEIGHT:
        return (Action(stage, INPUT, m),)
    forward = Action(stage, FORWARD, m)
    if stage + 1 < stages:
        return (forward, Action(stage + 1, INPUT, m))
    return (forward,)


def is_done(action: Action, done: set[Action]) -> bool:
    """Return whether a pass is among those done; B counts as its I."""
    return action in done or (
        action.kind == INPUT and action._replace(kind=FULL) in done
    )


def with_messages(
    rows: Sequence[Sequence[Action]], ranks: Sequence[int]
) -> tuple[Row, ...]:
    """Return rows of passes with every send and its receive added.

    Rows that have messages already are returned as they are. Passes that can never run stay at the
    end of their row, without messages.

    Args:
        rows: The passes of every rank, in order.
        ranks: The pipeline rank of every stage.
    """
    if any(action.kind in MESSAGES for row in rows for action in row):
        return tuple(tuple(row) for row in rows)
    messages: list[list[Action]] = [[] for _ in rows]
    place = [0] * len(rows)
    for going in instants(rows, len(ranks)):
        for rank, action in going.items():
            place[rank] += 1
            messages[rank].append(action)
        # What was computed at one instant is sent at its end.
        for rank, action in going.items():
            message = message_after(action, ranks)
            if message is not None:
                messages[rank].append(message.send)
                messages[ranks[message.receive.chunk]].append(message.receive)
    for rank, row in enumerate(rows):
        messages[rank] += row[place[rank] :]
    return tuple(tuple(row) for row in messages)


def instants(
    rows: Sequence[Sequence[Action]], stages: int
) -> Iterator[dict[int, Action]]:
    """Yield the passes of each instant by their ranks.

    In an instant every rank runs the next pass of its row, if all that this needs is done.
    """
    place = [0] * len(rows)
    finished = set[Action]()
    while going := {
        rank: action
        for rank, row in enumerate(rows)
        if (action := _next(row, place[rank], finished, stages)) is not None
    }:
        yield going
        for rank in going:
            place[rank] += 1
        finished.update(going.values())


def as_csv(rows: Sequence[Sequence[Action]], stages: int) -> str:
    """Format rows for PyTorch's `PipelineScheduleMulti`: passes alone, a column an instant.

    It receives in an instant what its neighbours make in the same one, so that what a pass waits
    for must stand in an earlier column. A rank without a pass in an instant has an empty cell.
    """
    passes = [[action for action in row if action.kind in PASSES] for row in rows]
    columns = list(instants(passes, stages))
    cells = (
        (str(x[rank]) if rank in x else "" for x in columns)
        for rank in range(len(rows))
    )
    return "".join(f"{','.join(row)}\n" for row in cells)


def _next(
    row: Sequence[Action], place: int, done: set[Action], stages: int
) -> Action | None:
    if place == len(row):
        return None
    action = row[place]
    if all(is_done(x, done) for x in find_needed_passes(action, stages)):
        return action
    return None


def words(rows: Sequence[Row]) -> list[list[str]]:
    """Return rows of actions as the words of a plan's file."""
    return [[str(action) for action in row] for row in rows]
