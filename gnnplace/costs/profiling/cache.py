"""A cache of measurements on disk, keyed by content: program, versions, machine.

Beside each measurement stands when and how quietly it was made (`conditions`), and `kept` decides
by that whether it is used or made again. What a key cannot see, such as a new cooler or a governor,
`measured_anew` overrides.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gnnplace.costs.profiling.conditions import MOST_AGE, Conditions, conditions_of, read_conditions
from gnnplace.errors import FormatError, GnnplaceError
from gnnplace.files import read_json, write_json
from gnnplace.problem.cluster.machine import processor_name
from gnnplace.tracing.program import Program

VERSION = 2  # of what is measured and how; a change makes old entries unread


def cache_folder() -> Path:
    """`$GNNPLACE_CACHE`, else `gnnplace` in `$XDG_CACHE_HOME` or `~/.cache`."""
    own = os.environ.get("GNNPLACE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gnnplace"


def program_digest(program: Program) -> str:
    """SHA-256 of what a program computes: ops, arguments, shapes; not the numbers in tensors."""
    text = hashlib.sha256()
    for op in program.ops:
        target = f"{getattr(op.target, '__module__', '')}.{op.target}"
        name = getattr(op.target, "__name__", target)
        text.update(repr((op.name, name, op.args, op.kwargs, op.results)).encode())
    for name, info in program.values.items():
        text.update(repr((name, info)).encode())
    return text.hexdigest()


@cache
def machine() -> dict[str, Any]:
    """What measured times depend on beside the program."""
    return {
        "cpu": processor_name(),
        "system": platform.system(),
        "torch": torch.__version__,
        "version": VERSION,
    }


def key(*parts: Any) -> str:
    """Key of what the parts and this machine determine."""
    return hashlib.sha256(repr((parts, sorted(machine().items()))).encode()).hexdigest()


_state = {"not before": datetime.min.replace(tzinfo=UTC)}


@contextmanager
def measured_anew() -> Iterator[None]:
    """Has everything that is profiled in the block measured anew, each thing once."""
    before, _state["not before"] = _state["not before"], datetime.now(UTC)
    try:
        yield
    finally:
        _state["not before"] = before


def kept(
    room: str,
    name: str,
    measure: Callable[[], tuple[Any, float]],
    *,
    what: str,
    fits: Callable[[Any], bool],
    use: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """A measurement from the cache, or made now and kept.

    One that turns out noisy is made twice, and the quieter one is kept.

    Args:
        room: Folder of the cache.
        name: Key of the entry.
        measure: Gives a value (plain data) and its noise.
        what: It is, for progress, such as "the op times of mlp".
        fits: Whether a value can be one; one on disk that cannot is measured anew.
        use: False: the cache is neither read nor written.
        progress: Called with a line if the value is noisy.
    """
    found = load(room, name) if use else None
    found = found if found is not None and fits(found[0]) else None
    if found is not None and not found[1].stale(_state["not before"]):
        value, conditions = found
    else:
        value, conditions = _measured(measure, what, progress)
        if found is not None and _better(found[1], conditions):
            value, conditions = found[0], replace(found[1], tried=conditions.when)
        if use:
            store(room, name, value, conditions)
    if conditions.noisy and progress is not None:
        progress(f"{what} were measured on a busy machine: {conditions}; --fresh measures again")
    return value


def _measured(
    measure: Callable[[], tuple[Any, float]], what: str, progress: Callable[[str], None] | None
) -> tuple[Any, Conditions]:
    first = conditions_of(measure)
    if not first[1].noisy:
        return first
    if progress is not None:
        progress(f"measuring {what} once more: {first[1]}")
    return min(first, conditions_of(measure), key=lambda made: made[1].disturbance)


def _better(old: Conditions, new: Conditions) -> bool:
    """Whether an old measurement is to be kept beside a new one: it is quieter, and not too old."""
    current = _state["not before"] <= old.when and datetime.now(UTC) - old.when <= MOST_AGE
    return current and old.disturbance < new.disturbance


def load(room: str, name: str) -> tuple[Any, Conditions] | None:
    """The value of a key and its conditions, or None: a broken entry is measured anew."""
    try:
        entry = read_json(cache_folder() / room / f"{name}.json")
        return entry["value"], read_conditions(entry)
    except (FormatError, KeyError, TypeError, ValueError, OverflowError):
        return None


def store(room: str, name: str, value: Any, conditions: Conditions) -> None:
    """Writes an entry atomically; a folder that cannot be written to is no error."""
    folder = cache_folder() / room
    with suppress(OSError, GnnplaceError):
        folder.mkdir(parents=True, exist_ok=True)
        entry = {"machine": machine(), "value": value} | conditions.data()
        write_json(folder / f"{name}.json", entry)
