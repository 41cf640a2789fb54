"""Seconds and bytes in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
MOST_FAULTS = 4  # that are told in one line
NEARLY = 0.9995  # three digits of it are the next unit's 1
COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def seconds_text(value: float | None) -> str:
    """Seconds with a unit that suits, e.g. ``12.3 ms``."""
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


def bytes_text(value: float) -> str:
    """Bytes with a unit that suits, e.g. ``1.5 MB``."""
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


def eager_line(times: Mapping[int, float]) -> str:
    """Eager PyTorch's step times, by number of cores, in one line."""
    shown = [
        f"{seconds_text(s)} on {n} core{'s' if n > 1 else ''}" for n, s in times.items()
    ]
    return f"eager PyTorch, measured beside: {', '.join(shown)}"
