"""What the store keeps, as plain data: runs, their steps, how they ended."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Row

EMULATED = "emulated"
OK = "ok"
FAILED = "failed"
INTERRUPTED = "interrupted"
OPEN = "open"


def now() -> str:
    """Return this instant in UTC, as the store has it: ISO 8601 to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new_id() -> str:
    """Return a name that no other run of any machine has."""
    return uuid.uuid4().hex


def packed(data: object) -> bytes:
    """Return compressed JSON. NaN and infinity are refused."""
    return zlib.compress(
        json.dumps(data, allow_nan=False, separators=(",", ":")).encode(), 1
    )


def unpacked(data: bytes) -> Any:
    """Return what `packed` was given."""
    return json.loads(zlib.decompress(data))


@dataclass(frozen=True)
class RunRecord:
    """One run of a placement: everything that is known before its first step.

    Attributes:
        model: What was captured, as it was called.
        problem: Data of the problem file, with the times and links that `predicted` comes from.
        fingerprint: The fingerprint of the problem's structure.
        placement: Data of the placement file.
        predicted: Simulated seconds of a step, None if it was not simulated.
        mode: "measured" (wall clock) or "emulated" (virtual clock).
        transport: How tensors travelled between workers, such as ``shm`` or ``gloo``.
        machine: What the machine was, as `gnnplace.problem.cluster.machine.machine` says it.
        versions: The versions of the packages that matter.
        source: What made the run: "execute", "demo", "fidelity", …
        id: The id of the run.
        began: When the run began, in UTC.
    """

    model: str
    problem: Mapping[str, Any]
    fingerprint: str
    placement: Mapping[str, Any]
    predicted: float | None
    mode: str
    transport: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    source: str = "execute"
    id: str = field(default_factory=new_id)
    began: str = field(default_factory=now)


@dataclass(frozen=True)
class StepRecord:
    """One measured step, in seconds.

    Attributes:
        step: Number of the step in its run; warm-up steps are not stored.
        wall: Seconds by the clock from the first device's start to the last one's finish.
        virtual: The same by the virtual clock.
        interrupted: Whether a worker was moved off its core in between.
        ops: Start and finish of every problem op since the step's start, and what it computed in
            between by its worker's own clock.
        transfers: Value, producer, source, target, bytes, start, finish of every message.
    """

    step: int
    wall: float
    virtual: float
    interrupted: bool
    ops: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    transfers: tuple[tuple[str, str, str, str, float, float, float], ...] = ()

    def timeline(self) -> bytes:
        """Return ops and transfers as they are stored, rounded to nanoseconds."""
        ops = {name: [round(x, 9) for x in times] for name, times in self.ops.items()}
        rows = [
            [*row[:5], round(row[5], 9), round(row[6], 9)] for row in self.transfers
        ]
        return packed({"ops": ops, "transfers": rows})

    @classmethod
    def from_row(cls, row: Row[Any]) -> StepRecord:
        """Return a row of the table of steps."""
        timeline = unpacked(row.timeline)
        return cls(
            step=row.step,
            wall=row.wall,
            virtual=row.virtual,
            interrupted=row.interrupted,
            ops={name: tuple(times) for name, times in timeline["ops"].items()},
            transfers=tuple(tuple(entry) for entry in timeline["transfers"]),
        )


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        status: "ok", "failed", or "interrupted" by the user, which says nothing of the placement;
            "open" of a run that goes on or was killed.
        error: Why it failed, one line.
        verified: Whether it computed what one process computes; None if nobody looked.
        bitwise: Whether to the last bit.
        ended: The time of the end, in UTC; empty while it runs.
    """

    status: str = OPEN
    error: str = ""
    verified: bool | None = None
    bitwise: bool | None = None
    ended: str = ""


@dataclass(frozen=True)
class StoredRun:
    """A run as it is listed: without problem, placement and timelines.

    Attributes:
        problem: Digest of the problem's data, by which the store gives it back.
        steps: Number of steps that were kept.
        wall: Median wall-clock seconds of a step, of uninterrupted ones if there are any.
        virtual: Median virtual seconds of a step.
        fastest_wall: Wall-clock seconds of the shortest step.
        fastest_virtual: Virtual seconds of the shortest step.
        disturbed: Whether other programs had the cores in all of its steps; see `is_disturbed`.
    """

    id: str
    began: str
    source: str
    model: str
    problem: str
    fingerprint: str
    microbatches: int
    placer: str | None
    predicted: float | None
    mode: str
    transport: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    outcome: Outcome
    steps: int
    wall: float | None
    virtual: float | None
    fastest_wall: float | None
    fastest_virtual: float | None
    disturbed: bool = False

    @property
    def step_time(self) -> float | None:
        """Return the seconds of a step by the clock of the run's mode, or None without a step."""
        if self.mode == EMULATED:
            return self.virtual
        return self.wall

    @property
    def fastest(self) -> float | None:
        """Return the seconds of the shortest step by the clock of the run's mode, or None."""
        if self.mode == EMULATED:
            return self.fastest_virtual
        return self.fastest_wall


DISTURBED = 1.25  # wall over virtual seconds: an undisturbed run has up to 1.1


def medians(
    steps: list[tuple[float, float, bool]],
) -> tuple[float | None, float | None]:
    """Return the median wall and virtual seconds of (wall, virtual, interrupted) rows."""
    if not steps:
        return None, None
    quiet = [wall for wall, _, interrupted in steps if not interrupted]
    return median(quiet or [wall for wall, _, _ in steps]), median(
        v for _, v, _ in steps
    )


def is_disturbed(steps: list[tuple[float, float, bool]]) -> bool:
    """Return whether other programs had the cores during all of a run.

    A worker was moved off its core in every one of the (wall, virtual, interrupted) rows, and even
    the shortest step took `DISTURBED` times as long by the wall clock as by the virtual one.
    """
    for _, _, interrupted in steps:
        if not interrupted:
            return False
    wall, virtual = fastest(steps)
    return wall is not None and virtual is not None and wall > DISTURBED * virtual


def fastest(
    steps: list[tuple[float, float, bool]],
) -> tuple[float | None, float | None]:
    """Return the shortest wall and virtual seconds of (wall, virtual, interrupted) rows.

    Other processes, the hypervisor and cold caches make steps longer and never shorter, so the
    shortest of many is nearest to what a placement takes by itself, and two measurements of it
    agree better than medians do.
    """
    if not steps:
        return None, None
    shortest_wall, shortest_virtual, _ = steps[0]
    for wall, virtual, _ in steps:
        shortest_wall = min(shortest_wall, wall)
        shortest_virtual = min(shortest_virtual, virtual)
    return shortest_wall, shortest_virtual
