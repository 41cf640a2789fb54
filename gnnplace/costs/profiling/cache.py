"""A cache of measurements on disk, keyed by content: program, versions, machine.

Each measurement is stored with its date and the load of the machine (`Conditions`), by which
`get_or_measure` decides whether it is used or measured again. A key cannot know of changes such as
a new cooler or another frequency governor; `measure_anew` ignores the cache for these.

*Load* is the share of the machine's processor time that others took meanwhile: what all cores did
(psutil's `cpu_times`, with what a hypervisor stole), less what this process and its workers did
(`getrusage`). *Noise* is how much repetitions differ: their interquartile range over their median.
A worker's clock does not count being preempted, but caches, memory bandwidth and clock rates are
shared, so that op times of a busy minute are too long all the same.
"""

from __future__ import annotations

import hashlib
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar

import numpy as np
import psutil
import torch

from gnnplace.arrays import FloatArray
from gnnplace.errors import FormatError, GnnplaceError
from gnnplace.files import cache_folder, read_json, write_json
from gnnplace.problem import processor_name
from gnnplace.tracing import Program

ValueT = TypeVar("ValueT")

MOST_LOAD = 0.25
"""Share of the machine that others may take; beyond it a measurement is noisy."""
MOST_NOISE = 0.15
"""Of repetitions; beyond it a measurement is noisy."""
MOST_AGE = timedelta(days=30)
"""Older measurements are made again."""
PAUSE = timedelta(minutes=10)
"""A noisy measurement is tried again after this, if the machine is quiet then."""
LOOK = 0.2
"""Seconds to find out whether the machine is quiet."""
IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Fields of `cpu_times` that are no work, or are counted elsewhere as well (proc(5))."""
VERSION = 2  # Changes with what is measured and how, so that old entries are not read


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement.

    Attributes:
        when: The time of the measurement, in UTC.
        tried: The time of the last attempt to measure it better, in UTC.
        load: Share of the machine's processor time that others took. 0 to 1
        noise: Interquartile range over median of the repetitions.
    """

    when: datetime
    tried: datetime
    load: float
    noise: float

    @property
    def noisy(self) -> bool:
        """Return whether it should be measured again on a quieter machine."""
        return self.load > MOST_LOAD or self.noise > MOST_NOISE

    @property
    def disturbance(self) -> float:
        """Return the larger of load and noise, each divided by its limit."""
        return max(self.load / MOST_LOAD, self.noise / MOST_NOISE)

    def stale(self, not_before: datetime) -> bool:
        """Return whether it has to be measured again.

        That is so if it is too old, or if it is noisy and the machine is quiet now.
        """
        time = datetime.now(UTC)
        if self.when < not_before or not timedelta() <= time - self.when <= MOST_AGE:
            return True
        return self.noisy and time - self.tried > PAUSE and load_now() <= MOST_LOAD

    def data(self) -> dict[str, Any]:
        """Return the conditions as plain data."""
        return {
            "when": self.when.isoformat(timespec="microseconds"),
            "tried": self.tried.isoformat(timespec="microseconds"),
            "load": self.load,
            "noise": self.noise,
        }

    def __str__(self) -> str:
        return (
            f"others took {self.load:.0%} of the processor time, repetitions differ by "
            f"{self.noise:.0%}"
        )


def read_conditions(data: dict[str, Any]) -> Conditions:
    """Return conditions from plain data.

    Raises:
        KeyError, TypeError, ValueError: They are not as `Conditions.data` gives them.
    """
    when, tried = (
        datetime.fromisoformat(data[name]).astimezone(UTC) for name in ("when", "tried")
    )
    return Conditions(when, tried, float(data["load"]), float(data["noise"]))


def watch_conditions(
    measure: Callable[[], tuple[Any, float]],
) -> tuple[Any, Conditions]:
    """Measure something and watch the machine meanwhile. Return the value and the conditions.

    Args:
        measure: Gives a value and its noise.
    """
    load = watch_load()
    value, noise = measure()
    time_measured = datetime.now(UTC)
    return value, Conditions(time_measured, time_measured, load(), noise)


def watch_load() -> Callable[[], float]:
    """Begin to watch the machine. Return a function that gives the share that others took since."""
    begin = time.perf_counter()
    busy = _busy()
    own_busy = _own()

    def load() -> float:
        capacity = (time.perf_counter() - begin) * (psutil.cpu_count() or 1)
        return float(
            np.clip(
                (_busy() - busy - (_own() - own_busy)) / max(capacity, 1e-9), 0.0, 1.0
            )
        )

    return load


def load_now() -> float:
    """Return the share of the machine that others take just now."""
    load = watch_load()
    time.sleep(LOOK)
    return load()


def spread(repetitions: FloatArray) -> float:
    """Return the interquartile range over the median. It is 0 for one repetition."""
    low, middle, high = np.percentile(repetitions, [25, 50, 75])
    if middle > 0:
        return float((high - low) / middle)
    return 0.0


def _busy() -> float:
    return sum(
        s for name, s in psutil.cpu_times()._asdict().items() if name not in IDLE
    )


def _own() -> float:
    uses = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def program_digest(program: Program) -> str:
    """Return the SHA-256 of what a program computes: ops, arguments and shapes.

    The numbers in tensors do not count.
    """
    text = hashlib.sha256()
    for op in program.ops:
        target = f"{getattr(op.target, '__module__', '')}.{op.target}"
        name = getattr(op.target, "__name__", target)
        text.update(repr((op.name, name, op.args, op.kwargs, op.results)).encode())
    for name, info in program.values.items():
        text.update(repr((name, info)).encode())
    return text.hexdigest()


@cache
def describe_profiled_machine() -> dict[str, Any]:
    """Return the properties of this machine that measured times depend on."""
    return {
        "cpu": processor_name(),
        "system": platform.system(),
        "torch": torch.__version__,
        "version": VERSION,
    }


def make_cache_key(*parts: object) -> str:
    """Return the key of what the parts and this machine determine."""
    return hashlib.sha256(
        repr((parts, sorted(describe_profiled_machine().items()))).encode()
    ).hexdigest()


_state = {"not before": datetime.min.replace(tzinfo=UTC)}


@contextmanager
def measure_anew() -> Iterator[None]:
    """Measure everything that is profiled in the block anew, each thing once."""
    limit = _state["not before"]
    _state["not before"] = datetime.now(UTC)
    try:
        yield
    finally:
        _state["not before"] = limit


def get_or_measure(
    room: str,
    name: str,
    measure: Callable[[], tuple[ValueT, float]],
    *,
    what: str,
    fits: Callable[[object], bool],
    progress: Callable[[str], None] | None = None,
) -> ValueT:
    """Return a measurement from the cache; without one, measure and keep it.

    One that turns out noisy is made twice, and the quieter one is kept.

    Args:
        room: The folder of the cache.
        name: The key of the entry.
        measure: Gives a value (plain data) and its noise.
        what: What the value is, for progress, such as "the op times of mlp".
        fits: Whether a value can be one; one on disk that cannot is measured anew.
        progress: Called with a line if the value is noisy.
    """
    entry = load(room, name)
    if not (entry is not None and fits(entry[0])):
        entry = None
    if entry is not None and not entry[1].stale(_state["not before"]):
        value, conditions = entry
    else:
        value, conditions = _measure(measure, what, progress)
        if entry is not None and _better(entry[1], conditions):
            value = entry[0]
            conditions = replace(entry[1], tried=conditions.when)
        store(room, name, value, conditions)
    if conditions.noisy and progress is not None:
        progress(
            f"{what} were measured on a busy machine: {conditions}; --fresh measures again"
        )
    return value


def _measure(
    measure: Callable[[], tuple[Any, float]],
    what: str,
    progress: Callable[[str], None] | None,
) -> tuple[Any, Conditions]:
    first = watch_conditions(measure)
    if not first[1].noisy:
        return first
    if progress is not None:
        progress(f"measuring {what} once more: {first[1]}")
    return min(first, watch_conditions(measure), key=lambda made: made[1].disturbance)


def _better(old: Conditions, new: Conditions) -> bool:
    """Return whether an old measurement is quieter than the new one, and not too old."""
    current = (
        _state["not before"] <= old.when and datetime.now(UTC) - old.when <= MOST_AGE
    )
    return current and old.disturbance < new.disturbance


def load(room: str, name: str) -> tuple[Any, Conditions] | None:
    """Return the value of a key and its conditions, or None: a broken entry is measured anew."""
    try:
        entry = read_json(cache_folder() / room / f"{name}.json")
        return entry["value"], read_conditions(entry)
    except (FormatError, KeyError, TypeError, ValueError, OverflowError):
        return None


def store(room: str, name: str, value: object, conditions: Conditions) -> None:
    """Write an entry atomically; a folder that cannot be written to is no error."""
    folder = cache_folder() / room
    with suppress(OSError, GnnplaceError):
        folder.mkdir(parents=True, exist_ok=True)
        entry = {
            "machine": describe_profiled_machine(),
            "value": value,
        } | conditions.data()
        write_json(folder / f"{name}.json", entry)
