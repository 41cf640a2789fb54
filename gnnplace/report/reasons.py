"""Why each op is where it is, as far as the problem says it; and what holds it until it starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, IntArray
from gnnplace.problem import Problem
from gnnplace.report.explanation.causes import Cause, Causes
from gnnplace.report.explanation.critical_path import COMPUTING, critical_path
from gnnplace.report.timeline import Timeline

UNKNOWN, NOTHING, DEVICE, ARRIVAL, COPY = 255, 0, 1, 2, 3
MOST_NAMED = 4


@dataclass(frozen=True, eq=False)
class Waits:
    """What holds each op of a step, m of them.

    Attributes:
        kind: DEVICE, ARRIVAL of a tensor, a COPY that its own device makes, NOTHING or UNKNOWN. [m]
        op: the op that it waits for, -1 for none. [m]
        transfer: the transfer that it waits for, -1 for none. [m]
        critical: whether it is on the critical path. [m]
    """

    kind: NDArray[np.uint8]
    op: IntArray
    transfer: IntArray
    critical: BoolArray


def waits(step: Timeline) -> Waits:
    """What holds the ops of a predicted step; unknown of a run."""
    count = len(step.op)
    found = Waits(
        np.full(count, UNKNOWN, dtype=np.uint8),
        np.full(count, -1, dtype=np.int32),
        np.full(count, -1, dtype=np.int32),
        np.zeros(count, dtype=bool),
    )
    if step.simulation is None or not count:
        return found
    causes = Causes(step.problem, step.simulation)
    for op in range(count):
        _note(found, op, causes.of(op))
    path = [piece.op for piece in critical_path(causes) if piece.kind == COMPUTING]
    found.critical[path] = True
    return found


def _note(found: Waits, op: int, cause: Cause | None) -> None:
    if cause is None:
        found.kind[op] = NOTHING
        return
    sent = COPY if cause.copies else ARRIVAL
    found.kind[op] = DEVICE if cause.transfer < 0 else sent
    found.op[op], found.transfer[op] = cause.op, cause.transfer


def place_reasons(problem: Problem, free: str) -> tuple[list[str], IntArray]:
    """Sentences that differ, and which of them holds for each op. [num_ops]

    Args:
        problem: what was placed.
        free: what is said of an op that may be anywhere.
    """
    shared = Counter(problem.colocate)
    told: dict[str, int] = {}
    texts = (_reason(problem, op, shared) or free for op in range(problem.num_ops))
    index = [told.setdefault(text, len(told)) for text in texts]
    return list(told), np.array(index, dtype=np.int32)


def _reason(problem: Problem, op: int, shared: Counter[str | None]) -> str:
    devices, parts = problem.cluster.devices, []
    group = problem.colocate[op]
    if problem.pin[op] >= 0:
        parts.append(f"It is pinned to {devices[problem.pin[op]].name}.")
    elif not problem.allowed[op].all():
        parts.append(f"It may be on {_names(problem, op)} alone.")
    if group is not None and shared[group] > 1:
        parts.append(
            f"It shares a device with {shared[group] - 1} other ops, all of class {group}."
        )
    return " ".join(parts)


def _names(problem: Problem, op: int) -> str:
    allowed = np.flatnonzero(problem.allowed[op])
    names = [problem.cluster.devices[d].name for d in allowed[:MOST_NAMED]]
    more = len(allowed) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
