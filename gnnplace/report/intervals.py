"""The throughput objective in tables and files: intervals of pipelined steps of all placers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from gnnplace.errors import GnnplaceError
from gnnplace.placers import Result
from gnnplace.placers.throughput import ThroughputResult
from gnnplace.report import seconds_text


def interval_row(result: ThroughputResult | tuple[str, GnnplaceError]) -> dict[str, Any]:
    """One placer's row as plain data."""
    if isinstance(result, tuple):
        return {"placer": result[0], "error": str(result[1])}
    return {
        "placer": result.placer,
        "interval": result.interval,
        "interval_bound": result.interval_bound,
        "step_time": result.step_time,
        "seconds": result.seconds,
        "note": result.note,
    }


def interval_table(
    results: Sequence[ThroughputResult | tuple[str, GnnplaceError]], title: str
) -> Table:
    """Placers by interval; the largest of their bounds holds for all."""
    heads = ("placer", "interval, predicted", "above bound", "step, predicted", "found in")
    table = Table(*heads, "remarks", title=title)
    placed = [result for result in results if not isinstance(result, tuple)]
    bound = max((result.interval_bound for result in placed), default=0.0)
    for result in sorted(placed, key=lambda result: result.interval):
        gap = f"{result.interval / bound - 1:.1%}" if bound > 0 else "-"
        seconds = (seconds_text(x) for x in (result.interval, result.step_time, result.seconds))
        interval, step, search = seconds
        table.add_row(result.placer, interval, gap, step, search, result.note)
    for failed in results:
        if isinstance(failed, tuple):
            table.add_row(failed[0], "-", "-", "-", "-", str(failed[1]))
    return table


def interval_keys(result: Result) -> dict[str, Any]:
    """What a placement file says of the throughput objective; nothing of the step time."""
    if not isinstance(result, ThroughputResult):
        return {}
    return {
        "x-objective": "throughput",
        "x-interval": result.interval,
        "x-interval-bound": result.interval_bound,
    }
