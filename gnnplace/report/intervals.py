"""The throughput objective in tables and files: intervals of pipelined steps of all placers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from gnnplace import api
from gnnplace.errors import GnnplaceError
from gnnplace.placers import Result, SearchSpace
from gnnplace.problem import Problem
from gnnplace.report import seconds_text
from gnnplace.throughput import ThroughputResult, with_interval
from gnnplace.throughput.placer import throughput_placer


def compare_intervals(
    problem: Problem,
    names: Iterable[str] | None = None,
    *,
    budget: float = api.DEFAULT_BUDGET,
    seed: int = 0,
    progress: api.Progress | None = None,
) -> list[ThroughputResult | tuple[str, GnnplaceError]]:
    """Intervals of pipelined steps: of placers for throughput, and what all others come to.

    The search for throughput is ``throughput``, the best contiguous split ``contiguous-split``.
    """
    space = SearchSpace(problem)
    results: list[ThroughputResult | tuple[str, GnnplaceError]] = []
    for label, placer in (("throughput", "best"), ("contiguous-split", "contiguous")):
        if progress is not None:
            progress(f"placing with {label}")
        made = throughput_placer(placer)
        try:
            found = made.place(problem, budget=budget, seed=seed, space=space)
            assert isinstance(found, ThroughputResult)
            results.append(replace(found, placer=label))
        except GnnplaceError as error:
            results.append((label, error))
    for result in api.compare(problem, names, budget=budget, seed=seed, progress=progress):
        results.append(result if isinstance(result, tuple) else with_interval(space, result))
    return results


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
        "x-objective": api.THROUGHPUT,
        "x-interval": result.interval,
        "x-interval-bound": result.interval_bound,
    }
