"""Rows of results: append-only JSON Lines, one a cell, each with where it comes from."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gnnplace.errors import FormatError, InputError
from gnnplace.files import fault_line
from gnnplace.problem import list_versions, package_commit, processor_name

IDENTITY = ("problem", "placer", "seed", "budget")
SECONDS, STEPS = "seconds", "steps"  # The units of budgets
# A digest in rows and tables; empty if the problem could not be made.
DIGEST = r"^(\d+:.+)?$"
FIRST = "@1"  # version of a suite that has no number in the name of its file of rows
PACKAGES = ("gnnplace", "torch", "numba", "numpy", "ortools", "pymetis")


class RowEntry(BaseModel):
    """The columns that every row of results has."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    problem: str
    placer: str
    seed: int
    budget: Annotated[float, Field(ge=0)]
    feasible: bool = False
    step_time: Annotated[float, Field(ge=0)] | None = None
    lower_bound: Annotated[float, Field(ge=0)] | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    error: str = ""
    digest: Annotated[str, Field(pattern=DIGEST)] = ""
    clock: str | None = None
    family: str | None = None
    cluster: str | None = None
    commit: str | None = None
    when: str | None = None
    suite: str = ""
    seen: bool | None = False
    seen_how: str = ""
    seen_block: bool | None = False
    graph: str = ""
    parameters: Annotated[int, Field(ge=0)] = 0
    training_hours: Annotated[float, Field(ge=0)] = 0.0
    trained_on: list[str] | str = []
    by: str = ""
    unit: Literal["seconds", "steps"] = "seconds"
    peak_memory: list[Annotated[float, Field(ge=0)]] | None = None
    processor_seconds: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _step_time(self) -> RowEntry:
        if self.feasible and not self.step_time:
            raise ValueError("a feasible row needs a step_time above 0")
        return self


@cache
def provenance() -> dict[str, Any]:
    """Return commit, versions and machine that a row is from."""
    return {
        "commit": package_commit(),
        "versions": list_versions(PACKAGES),
        "machine": {
            "processor": processor_name(),
            "cores": len(os.sched_getaffinity(0)),
            "memory": psutil.virtual_memory().total,
            "system": f"{platform.system()} {platform.machine()}",
        },
    }


def format_now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def append(path: Path, row: dict[str, Any]) -> None:
    """Append one row and make sure that it is on disk.

    Raises:
        InputError: It cannot be written, as on a full disk; nothing of it is left in the file.
    """
    mend_last_line(path)
    unwritten = memoryview((json.dumps(row, allow_nan=False) + "\n").encode())
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(size)
            raise InputError(
                f"{path}: a row cannot be written: {error.strerror}; make room and run it again"
            ) from None


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold a file of rows against every other run that would write to it; a kill lets go of it.

    Raises:
        InputError: Another run writes to the file.
    """
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"{path}: another run writes to it; give another folder"
            ) from None
        yield


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read all rows of a file. Nothing is written.

    A last line without a newline is a row, unless it was cut short as by a kill.

    Raises:
        FormatError: A line elsewhere is not a row; the message has its number.
    """
    if not path.is_file():
        return []
    *lines, last = path.read_bytes().split(b"\n")
    rows = [
        _row(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)
    ]
    if last.strip():
        with suppress(FormatError):
            rows.append(_row(last, str(path)))
    return rows


def mend_last_line(path: Path) -> None:
    """Make a file of rows end with a newline, before rows are appended.

    A last line that is a row gets one; a line that was cut short is taken out.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        text = file.read()
        last = text.rpartition(b"\n")[2]
        try:
            _row(last, str(path))
        except FormatError:
            file.truncate(len(text) - len(last))
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")


def set_aside(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Move rows out of a file into ``NAME.jsonl.replaced`` beside it.

    Args:
        path: The file of rows.
        rows: The rows of that file that no longer count.

    Returns:
        The file that has them now.
    """
    replaced = {json.dumps(row, sort_keys=True) for row in rows}
    aside = path.with_name(f"{path.name}.replaced")
    remaining = []
    for row in read_rows(path):
        if json.dumps(row, sort_keys=True) in replaced:
            append(aside, row)
        else:
            remaining.append(row)
    # The file is filled in place: a lock is held on it.
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in remaining)
    with path.open("rb+") as file:
        file.write(text.encode())
        file.truncate()
        os.fsync(file.fileno())
    return aside


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        RowEntry.model_validate(row)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise FormatError(
            f"{where}: not a result row: {fault_line(fault)}; mend or remove it"
        ) from None
    except (ValueError, RecursionError, OverflowError):
        raise FormatError(f"{where}: not a result row; mend or remove it") from None
    return {"feasible": False, "step_time": None, "commit": "", **row}


def identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that tell a row's cell from all others."""
    return (*(row[key] for key in IDENTITY), get_budget_unit(row))


def get_budget_unit(row: Mapping[str, Any]) -> str:
    """Return the unit of a row's budget; rows from before there were steps count seconds."""
    return str(row.get("unit", SECONDS))


def results_file(
    folder: str | Path, suite: str, part: tuple[int, int] | None = None
) -> Path:
    """Return the path of the rows of a suite or of a part of it, and make its folder.

    A suite's first version has no number in the file's name.

    Raises:
        InputError: The folder cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"results folder {str(folder)!r}: {error.strerror}") from None
    suffix = f"-{part[0]}-of-{part[1]}" if part else ""
    return Path(folder) / f"{suite.replace(FIRST, '')}{suffix}.jsonl"
