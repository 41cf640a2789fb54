"""The critical path of a simulated step: the chain of waiting events from its end to its start.

From the op that finishes last, each op's cause (``causes``) leads back to zero seconds. The pieces
lie end to end, so their seconds sum to the step time: ops that compute, transfers, seconds in which
a transfer waits for its channels, and overheads of messages. Complexity: O(pieces), with causes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnnplace.explaining.placements.causes import Cause, Causes

COMPUTING = "computing"
TRANSFER = "transfer"
WAITING = "waiting"
MESSAGES = "messages"
KINDS = (COMPUTING, TRANSFER, WAITING, MESSAGES)


@dataclass(frozen=True)
class PathPiece:
    """A stretch of the critical path.

    Attributes:
        kind: one of ``KINDS``; waiting is for a link that is taken.
        begin: seconds.
        end: seconds.
        op: the op that computes, or that makes what is sent, or that messages hold.
        device: The device of that op.
        target: the device that a transfer goes to; else that of the op.
    """

    kind: str
    begin: float
    end: float
    op: int
    device: int
    target: int

    @property
    def seconds(self) -> float:
        """Return the length of the path in seconds."""
        return self.end - self.begin


def find_critical_path(causes: Causes) -> tuple[PathPiece, ...]:
    """Return the pieces of the path, first to last; those without seconds are included."""
    return tuple(reversed(list(_backwards(causes))))


def _backwards(causes: Causes) -> Iterator[PathPiece]:
    s = causes.simulation
    op = int(np.argmax(s.finish))
    while True:
        device = int(s.device[op])
        start = float(s.start[op])
        yield PathPiece(COMPUTING, start, float(s.finish[op]), op, device, device)
        cause = causes.of(op)
        end = 0.0 if cause is None else cause.end
        if end < start:
            yield PathPiece(MESSAGES, end, start, op, device, device)
        if cause is None:
            return
        if cause.transfer >= 0:
            yield from _transfer(causes, cause)
        op = cause.op


def _transfer(causes: Causes, cause: Cause) -> Iterator[PathPiece]:
    """Yield a transfer, and the seconds before it in which its channels were busy."""
    transfers = causes.simulation.transfers
    k = cause.transfer
    ends = int(transfers.source[k]), int(transfers.target[k])
    begin = float(transfers.start[k])
    queued = float(causes.simulation.finish[cause.op])
    yield PathPiece(TRANSFER, begin, cause.end, cause.op, *ends)
    if queued < begin:
        yield PathPiece(WAITING, queued, begin, cause.op, *ends)
