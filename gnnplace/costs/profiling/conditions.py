"""When and how quietly something was measured, and when it has to be measured again.

*Load* is the share of the machine's processor time that others took meanwhile: what all cores did
(psutil's `cpu_times`, with what a hypervisor stole), less what this process and its workers did
(`getrusage`). *Noise* is how much repetitions differ: their interquartile range over their median.
A worker's clock does not count being preempted, but caches, memory bandwidth and clock rates are
shared, so that op times of a busy minute are too long all the same.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement.

    Attributes:
        when: It was measured, UTC.
        tried: It was last tried to measure it better, UTC.
        load: Share of the machine's processor time that others took. 0 to 1
        noise: Interquartile range over median of the repetitions.
    """

    when: datetime
    tried: datetime
    load: float
    noise: float

    @property
    def noisy(self) -> bool:
        """Whether it should be measured again on a quieter machine."""
        return self.load > MOST_LOAD or self.noise > MOST_NOISE

    @property
    def disturbance(self) -> float:
        """The larger of load and noise, each in units of what it may be."""
        return max(self.load / MOST_LOAD, self.noise / MOST_NOISE)

    def stale(self, not_before: datetime) -> bool:
        """Whether it has to be measured again: it is too old, or noisy and the machine is quiet."""
        now = datetime.now(UTC)
        if self.when < not_before or not timedelta() <= now - self.when <= MOST_AGE:
            return True
        return self.noisy and now - self.tried > PAUSE and load_now() <= MOST_LOAD

    def data(self) -> dict[str, Any]:
        """As plain data."""
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
    """Conditions from plain data.

    Raises:
        KeyError, TypeError, ValueError: they are not as `Conditions.data` gives them.
    """
    when, tried = (datetime.fromisoformat(data[name]).astimezone(UTC) for name in ("when", "tried"))
    return Conditions(when, tried, float(data["load"]), float(data["noise"]))


def conditions_of(measure: Callable[[], tuple[Any, float]]) -> tuple[Any, Conditions]:
    """Measures something and watches the machine meanwhile.

    Args:
        measure: Gives a value and its noise.
    """
    load = watch_load()
    value, noise = measure()
    now = datetime.now(UTC)
    return value, Conditions(now, now, load(), noise)


def watch_load() -> Callable[[], float]:
    """Begins to watch the machine; call the result for the share that others took since."""
    begin, busy, own = time.perf_counter(), _busy(), _own()

    def load() -> float:
        capacity = (time.perf_counter() - begin) * (psutil.cpu_count() or 1)
        return float(np.clip((_busy() - busy - (_own() - own)) / max(capacity, 1e-9), 0.0, 1.0))

    return load


def load_now() -> float:
    """The share of the machine that others take just now."""
    load = watch_load()
    time.sleep(LOOK)
    return load()


def spread(repetitions: NDArray[np.float64]) -> float:
    """Interquartile range over median. Of one repetition it is 0."""
    low, middle, high = np.percentile(repetitions, [25, 50, 75])
    return float((high - low) / middle) if middle > 0 else 0.0


def _busy() -> float:
    return sum(s for name, s in psutil.cpu_times()._asdict().items() if name not in IDLE)


def _own() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)
