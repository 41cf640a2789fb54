"""Records of the store of measurements, as plain data: runs, their steps, and how they ended.

A run is a placement that was executed for some steps. ``medians``, ``fastest`` and ``is_disturbed``
summarise its steps.
"""

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
FASTEST_COMPRESSION = 1  # level of zlib
DECIMALS = 9  # of stored seconds: nanoseconds


def format_instant() -> str:
    """Return the present time in UTC as the store has it: ISO 8601, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new_id() -> str:
    """Return an id that no other run on any machine has."""
    return uuid.uuid4().hex


def pack_json(data: object) -> bytes:
    """Return data as compressed JSON.

    Raises:
        ValueError: There is a NaN or an infinity, which JSON does not have.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return zlib.compress(text.encode(), FASTEST_COMPRESSION)


def unpack_json(data: bytes) -> Any:
    """Return the data that `pack_json` compressed."""
    return json.loads(zlib.decompress(data))


@dataclass(frozen=True)
class RunRecord:
    """One run of a placement, as far as it is known before the first step.

    Attributes:
        model: The name of the model that was captured.
        problem: Data of the problem file, with the times and links that `predicted` comes from.
        fingerprint: The fingerprint of the problem's structure.
        placement: Data of the placement file.
        predicted: Simulated seconds of a step, None if it was not simulated.
        mode: "measured" (wall clock) or "emulated" (virtual clock).
        transport: How workers exchanged tensors, such as ``shm`` or ``gloo``.
        machine: The machine, as `gnnplace.problem.describe_machine` describes it.
        versions: Versions of the packages that step times depend on.
        source: The command that made the run: "execute", "demo", "fidelity", …
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
    began: str = field(default_factory=format_instant)


@dataclass(frozen=True)
class StepRecord:
    """One measured step, in seconds.

    Attributes:
        step: Number of the step in its run; warm-up steps are not stored.
        wall: Wall-clock seconds from the first device's start to the last one's finish.
        virtual: The same seconds by the virtual clock.
        interrupted: Whether a worker was moved off its core during the step.
        ops: For every op of the problem, its start and finish since the step's start, and the
            processor seconds that its worker spent in between.
        transfers: Value, producer, source, target, bytes, start and finish of every message.
    """

    step: int
    wall: float
    virtual: float
    interrupted: bool
    ops: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    transfers: tuple[tuple[str, str, str, str, float, float, float], ...] = ()

    def timeline(self) -> bytes:
        """Return ops and transfers as compressed data, with seconds rounded to nanoseconds."""
        ops = {
            name: [round(seconds, DECIMALS) for seconds in times]
            for name, times in self.ops.items()
        }
        transfers = []
        for *message, start, finish in self.transfers:
            times = [round(start, DECIMALS), round(finish, DECIMALS)]
            transfers.append([*message, *times])
        return pack_json({"ops": ops, "transfers": transfers})

    @classmethod
    def from_row(cls, row: Row[Any]) -> StepRecord:
        """Return the step that a row of the table of steps has."""
        timeline = unpack_json(row.timeline)
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
    """The outcome of a run.

    Attributes:
        status: "ok"; "failed"; "interrupted" by the user, which says nothing about the placement;
            "open" if the run goes on or was killed.
        error: Why it failed, in one line.
        verified: Whether its results agree with those of one process; None if not checked.
        bitwise: Whether they agree to the last bit; None if not checked.
        ended: When the run ended, in UTC; empty while it runs.
    """

    status: str = OPEN
    error: str = ""
    verified: bool | None = None
    bitwise: bool | None = None
    ended: str = ""


@dataclass(frozen=True)
class StoredRun:
    """A run as the store lists it: without the data of problem, placement and timelines.

    Fields that `RunRecord` has mean what they mean there.

    Attributes:
        problem: Digest of the problem's data, by which the store finds the data.
        microbatches: Number of micro-batches of the problem.
        placer: Name of the placer that made the placement; None if unknown.
        outcome: How the run ended.
        steps: Number of stored steps.
        wall: Median wall-clock seconds of the uninterrupted steps; of all if there are none.
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
        """Return the median seconds of a step by the clock of the run's mode, or None."""
        if self.mode == EMULATED:
            return self.virtual
        return self.wall

    @property
    def fastest(self) -> float | None:
        """Return the seconds of the shortest step by the clock of the run's mode, or None."""
        if self.mode == EMULATED:
            return self.fastest_virtual
        return self.fastest_wall


DISTURBED = 1.25  # wall over virtual seconds; runs without disturbance have up to 1.1


def medians(
    steps: list[tuple[float, float, bool]],
) -> tuple[float | None, float | None]:
    """Return the median wall and virtual seconds of (wall, virtual, interrupted) rows."""
    if not steps:
        return None, None
    quiet_walls = [wall for wall, _, interrupted in steps if not interrupted]
    all_walls = [wall for wall, _, _ in steps]
    virtual = median(virtual for _, virtual, _ in steps)
    return median(quiet_walls or all_walls), virtual


def is_disturbed(steps: list[tuple[float, float, bool]]) -> bool:
    """Return whether other programs used the cores during the whole run.

    They did if each of the (wall, virtual, interrupted) rows was interrupted, and if even the
    shortest step took `DISTURBED` times as long by the wall clock as by the virtual one.
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

    Other processes, the hypervisor and cold caches make steps longer and never shorter. So the
    shortest of many steps is nearest to what the placement takes by itself, and two measurements of
    it agree better than two medians do.
    """
    if not steps:
        return None, None
    shortest_wall, shortest_virtual, _ = steps[0]
    for wall, virtual, _ in steps:
        shortest_wall = min(shortest_wall, wall)
        shortest_virtual = min(shortest_virtual, virtual)
    return shortest_wall, shortest_virtual
