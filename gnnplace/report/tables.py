"""Tables for people: placers side by side, one simulated step, sizes of micro-batches, modules.

For a terminal by rich; a placement or a plan by module also as a file to read (.md) or to work with
(.csv). Intervals are those of the throughput objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.explaining import module_rows
from gnnplace.files import csv_text, write_text
from gnnplace.placers import Result, ThroughputResult
from gnnplace.problem import Placement, Problem
from gnnplace.report.rows import Row
from gnnplace.simulation import Simulation
from gnnplace.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from gnnplace.plans import Plan
    from gnnplace.policy import Size


def comparison_table(rows: Sequence[Row], title: str) -> Table:
    """Placers side by side, the best predicted first; speed-ups are over placer ``single``.

    ``measured`` is wall clock, ``virtual`` the same run by the workers' own CPU time and stamps.
    """
    mode = next((row.mode for row in rows if row.mode), "measured")
    base = next((row for row in rows if row.placer == "single"), None)
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("placer", no_wrap=True)
    headings = [
        "predicted",
        mode,
        "virtual",
        "speed-up",
        "peak memory",
        "gap",
        "to place",
    ]
    shown = [h for h in headings if h != "virtual" or mode == "measured"]
    if not any(row.executed for row in rows):
        shown = [h for h in shown if h not in (mode, "virtual")]
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remarks", overflow="fold")
    for row in sorted(rows, key=lambda row: (row.predicted is None, row.predicted)):
        cells = _cells(row, base, mode)
        if row.placer == "best":
            style = "bold green"
        else:
            style = None
        remarks = row.error or "; ".join(
            part for part in (row.note, row.verified) if part
        )
        table.add_row(row.placer, *(cells[h] for h in shown), remarks, style=style)
    return table


def _cells(row: Row, base: Row | None, mode: str) -> dict[str, str]:
    return {
        "predicted": seconds_text(row.predicted),
        mode: seconds_text(row.executed),
        "virtual": seconds_text(row.virtual),
        "speed-up": _speedup(row, base),
        "peak memory": bytes_text(max(row.peak_memory)) if row.peak_memory else "-",
        "gap": "-" if row.gap is None else f"{row.gap:.1%}",
        "to place": seconds_text(row.seconds),
    }


def _speedup(row: Row, base: Row | None) -> str:
    """Of executed times where both were run, else of predicted ones, marked ``p``."""
    if base is None or base.predicted is None or not row.predicted:
        return "-"
    if row.executed and base.executed:
        return f"{base.executed / row.executed:.2f}x"
    return f"{base.predicted / row.predicted:.2f}x p"


def simulation_table(problem: Problem, simulation: Simulation) -> Table:
    """Busy share and peak memory of every device."""
    table = Table(title=f"{problem.name}: predicted step", title_justify="left")
    for heading in ("device", "kind", "ops", "busy", "peak memory", "of", "headroom"):
        table.add_column(
            heading, justify="left" if heading in ("device", "kind") else "right"
        )
    busy = simulation.busy_share(problem.num_devices)
    for d, device in enumerate(problem.cluster.devices):
        table.add_row(
            device.name,
            device.kind,
            str(int((simulation.device == d).sum())),
            f"{busy[d]:.1%}",
            bytes_text(simulation.peak_memory[d]),
            bytes_text(device.memory),
            bytes_text(device.memory - simulation.peak_memory[d]),
        )
    return table


def memory_lines(problem: Problem, simulation: Simulation) -> list[str]:
    """Peak memory and headroom of each device, alike devices in one line."""
    devices_by_text: dict[str, list[str]] = {}
    for device, peak in zip(
        problem.cluster.devices, simulation.peak_memory, strict=True
    ):
        if device.reserve:
            reserved = f", {bytes_text(device.reserve)} of it reserved"
        else:
            reserved = ""
        text = (
            f"{bytes_text(peak)} of {bytes_text(device.memory)}, "
            f"headroom {bytes_text(device.memory - peak)}{reserved}"
        )
        devices_by_text.setdefault(text, []).append(device.name)
    return [
        f"memory of {', '.join(names)}: {text}"
        for text, names in devices_by_text.items()
    ]


def sizes_table(sizes: Sequence[Size], chosen: Size) -> Table:
    """Make a table of the step time at every number of micro-batches."""
    table = Table("micro-batches", "work on one device", "step, predicted", "remarks")
    for size in sizes:
        if size.result is None:
            step = "-"
        else:
            step = seconds_text(size.result.step_time)
        remark = size.note or ("chosen" if size is chosen else "")
        table.add_row(str(size.microbatches), seconds_text(size.work), step, remark)
    return table


def interval_row(
    result: ThroughputResult | tuple[str, GnnplaceError],
) -> dict[str, Any]:
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
    heads = (
        "placer",
        "interval, predicted",
        "above bound",
        "step, predicted",
        "found in",
    )
    table = Table(*heads, "remarks", title=title)
    placed = [result for result in results if not isinstance(result, tuple)]
    bound = max((result.interval_bound for result in placed), default=0.0)
    for result in sorted(placed, key=lambda result: result.interval):
        if bound > 0:
            gap = f"{result.interval / bound - 1:.1%}"
        else:
            gap = "-"
        seconds = (
            seconds_text(x) for x in (result.interval, result.step_time, result.seconds)
        )
        interval, step, search = seconds
        table.add_row(result.placer, interval, gap, step, search, result.note)
    for failed in results:
        if isinstance(failed, tuple):
            table.add_row(failed[0], "-", "-", "-", "-", str(failed[1]))
    return table


def interval_keys(result: Result) -> dict[str, Any]:
    """Return what a placement file says of the throughput objective; nothing of the step time."""
    if not isinstance(result, ThroughputResult):
        return {}
    return {
        "x-objective": "throughput",
        "x-interval": result.interval,
        "x-interval-bound": result.interval_bound,
    }


SUFFIXES = (".md", ".csv")
ALL = 10**9  # rows
Rows = list[list[str]]


def check_table(path: str | None) -> None:
    """Refuses a file that is neither Markdown nor CSV; None is none.

    Raises:
        InputError: naming what may be.
    """
    if path is not None and Path(path).suffix not in SUFFIXES:
        raise InputError(f"table {path!r}: name a file that ends in .md or .csv")


def placement_rows(problem: Problem, placement: Placement) -> tuple[list[str], Rows]:
    """Headings, and a row for every module on each device it has ops on, as the step needs them.

    Seconds are those of its ops there, bytes of their state.
    """
    labels, row = module_rows(problem, ALL)
    device = placement.device.astype(np.int64)
    seconds = problem.times[np.arange(problem.num_ops), device]
    key = row * problem.num_devices + device
    keys, index = np.unique(key, return_inverse=True)
    ops = np.bincount(index.ravel())
    spent = np.bincount(index.ravel(), seconds)
    state = np.bincount(index.ravel(), problem.state)
    names = [one.name for one in problem.cluster.devices]
    rows = [
        [
            labels[k // len(names)],
            names[k % len(names)],
            str(count),
            f"{time:.6g}",
            f"{size:.0f}",
        ]
        for k, count, time, size in zip(keys.tolist(), ops, spent, state, strict=True)
    ]
    return ["module", "device", "ops", "seconds", "bytes of state"], rows


def plan_rows(plan: Plan) -> tuple[list[str], Rows]:
    """Headings, and a row for every module in each stage that has some of it."""
    rows = []
    for number, stage in enumerate(plan.file.stages):
        devices = " ".join(stage.device_names)
        mesh = f"{len(stage.rows)} x {len(stage.rows[0])}"
        for module in stage.modules:
            if module in stage.recompute.modules:
                recomputed = "yes"
            else:
                recomputed = "no"
            rows.append(
                [module, str(number), devices, mesh, str(stage.zero), recomputed]
            )
    return [
        "module",
        "stage",
        "devices",
        "replicas x shards",
        "ZeRO",
        "recomputed",
    ], rows


def moved_between(before: Plan, after: Plan) -> dict[str, tuple[str, str]]:
    """Where each module is in two plans of one model, of those that are not alike in both."""

    def places(plan: Plan) -> dict[str, str]:
        by_module: dict[str, str] = {}
        for module, _, devices, mesh, zero, recomputed in plan_rows(plan)[1]:
            suffix = f", ZeRO {zero}" * (zero != "0") + ", recomputed" * (
                recomputed == "yes"
            )
            location = f"{devices} ({mesh}{suffix})"
            by_module[module] = (
                f"{by_module[module]}, {location}" if module in by_module else location
            )
        return by_module

    first = places(before)
    second = places(after)
    return {
        m: (first[m], second[m]) for m in first if first[m] != second.get(m, first[m])
    }


def write_table(path: str | Path, headings: Sequence[str], rows: Rows) -> None:
    """Write a table atomically.

    Raises:
        InputError: neither .md nor .csv, or the file cannot be written.
    """
    check_table(str(path))
    plain = Path(path).suffix == ".csv"
    if plain:
        write_text(path, csv_text([headings, *rows]))
        return
    lines = [list(headings), ["---"] * len(headings), *rows]
    text = (
        f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines
    )
    write_text(path, "".join(text))
