"""Seconds, bytes and counts in words, for everything that is printed, drawn or written.

Each of these texts is formatted here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
MOST_FAULTS = 4  # The most faults that one line lists
NEARLY = 0.9995  # three digits of it are the next unit's 1
COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def seconds_text(value: float | None) -> str:
    """Format seconds with a suitable unit, e.g. ``12.3 ms``."""
    if value is None:
        return "-"
    if value == 0 or value != value or value == float("inf"):
        if value == 0:
            return "0 s"
        return str(value)
    scale, unit = next(
        ((s, u) for s, u in UNITS if abs(value) >= NEARLY * s), UNITS[-1]
    )
    return f"{value / scale:.3g} {unit}"


def page_seconds(value: float | None) -> str:
    """Format seconds for a page, whose script writes ``µs``."""
    return seconds_text(value).replace(" us", " µs")


def step_text(seconds: float) -> str:
    """Format the time of a step with digits enough to compare two, e.g. ``123.45 ms``."""
    if seconds < 1.0:
        return f"{1e3 * seconds:.2f} ms"
    return f"{seconds:.3f} s"


def milliseconds_text(seconds: float, digits: str = ".4g") -> str:
    """Format seconds as a number of milliseconds, without the unit.

    Args:
        seconds: The time.
        digits: How the number is written, as in a format string.
    """
    return format(1e3 * seconds, digits)


def training_text(seconds: float) -> str:
    """Format how long training takes, e.g. ``3.2 days``, ``5 h``, ``12 min`` or ``40 s``."""
    if not isfinite(seconds):
        return "unknown"
    for unit, size in (("days", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def duration_text(seconds: float) -> str:
    """Format how long training takes: in days, or in hours where they are few."""
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:,.3g} days"
    if seconds >= HOUR:
        return f"{seconds / HOUR:,.3g} hours"
    return seconds_text(seconds)


def age_text(seconds: float) -> str:
    """Format a time as a number of the largest unit that it has at least two of."""
    units = ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes"), (1.0, "seconds"))
    for size, name in units:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return "a moment"


def bytes_text(value: float) -> str:
    """Format bytes with a suitable unit, e.g. ``1.5 MB``."""
    scale, unit = next(
        ((s, u) for s, u in BYTES if abs(value) >= NEARLY * s), BYTES[-1]
    )
    return f"{value / scale:.3g} {unit}"


def count_text(value: float) -> str:
    """Format a large number as `--tokens` takes it, e.g. ``15T`` or ``1.25B``."""
    scale, letter = next(
        ((s, u) for s, u in COUNTS if abs(value) >= NEARLY * s), (1, "")
    )
    if letter:
        return f"{value / scale:.3g}{letter}"
    return f"{value:,.0f}"


def days_text(value: float) -> str:
    """Format a number of days with three digits, e.g. ``1,490 days`` or ``0.52 days``."""
    if value >= 100:
        digits = f"{float(f'{value:.3g}'):,.0f}"
    else:
        digits = f"{value:.3g}"
    return f"{digits} days"


def names_text(names: Sequence[str], most: int) -> str:
    """Format the first few names in one line, and how many more there are."""
    num_hidden = len(names) - most
    return ", ".join(names[:most]) + (
        f" and {num_hidden} more" if num_hidden > 0 else ""
    )


def faults_text(faults: Sequence[str]) -> str:
    """Format the first few faults in one line, and how many more there are."""
    num_hidden = len(faults) - MOST_FAULTS
    return "; ".join(faults[:MOST_FAULTS]) + (
        f"; and {num_hidden:,} more" if num_hidden > 0 else ""
    )
