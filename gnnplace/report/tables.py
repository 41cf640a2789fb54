"""Tables of placements: placers side by side, one simulated step, sizes of micro-batches, modules.

A placement or a plan by module is also a file to read (.md) or to work with (.csv). Intervals are
those of the throughput objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.explaining import module_rows
from gnnplace.files import write_text
from gnnplace.placers import Result, ThroughputResult
from gnnplace.problem import Placement, Problem
from gnnplace.report import html
from gnnplace.report.answer import (
    Answer,
    Column,
    Lines,
    Table,
    TextTable,
    as_csv,
    as_markdown,
    data_columns,
    text_table,
)
from gnnplace.report.html import Html
from gnnplace.report.rows import Row
from gnnplace.report.timeline import Timeline, from_simulation, make_page
from gnnplace.simulation import Simulation
from gnnplace.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from gnnplace.placing import Size
    from gnnplace.plans import Plan

PERCENT = "{:.1%}".format


def comparison(rows: Sequence[Row], title: str) -> Table[Row]:
    """Describe placers side by side; people see the best predicted first.

    ``measured`` is wall clock, ``virtual`` the same run by the workers' own CPU time and stamps.
    """
    mode = next((row.mode for row in rows if row.executed), None)
    base = next((row for row in rows if row.placer == "single"), None)
    longest = max((row.executed or row.predicted or 0.0 for row in rows), default=0.0)
    # Times of a run stand where there was one.
    times = [Column[Row]("predicted", "predicted", seconds_text)]
    if mode is not None:
        times.append(Column(mode, "executed", seconds_text))
    if mode == "measured":
        times.append(Column("virtual", "virtual", seconds_text))
    run = "" if mode is None else f"{mode} step time where it was run, else the "
    return Table(
        columns=[
            *data_columns(Row),
            Column("placer", "placer"),
            *times,
            Column("speed-up", partial(_speedup, base=base)),
            Column("peak memory", "fullest", bytes_text),
            Column("gap", "gap", PERCENT),
            Column("to place", "seconds", seconds_text),
            Column("remarks", "remarks", words=True),
        ],
        rows=rows,
        title=title,
        key="rows",
        unknown=(None, "", ()),
        order=lambda row: (row.predicted is None, row.predicted),
        best=next((row for row in rows if row.placer == "best"), None),
        bar=partial(_bar, longest=longest or 1.0),
        note=(
            f"A bar is the {run}predicted step time. The line across it is the lower bound: no "
            "placement can be faster, and the gap is to it. Predicted times are simulated from "
            "those of ops and links."
        ),
    )


def _speedup(row: Row, base: Row | None) -> str | None:
    """Format a speed-up of executed times if both were run, else of predicted ones (``p``)."""
    if base is None or base.predicted is None or not row.predicted:
        return None
    if row.executed and base.executed:
        return f"{base.executed / row.executed:.2f}x"
    return f"{base.predicted / row.predicted:.2f}x p"


def _bar(row: Row, longest: float) -> Html:
    """Draw the time of a step, with a line at its lower bound."""
    bound = None
    if row.lower_bound is not None and row.predicted:
        bound = row.lower_bound / longest
    return html.share((row.executed or row.predicted or 0.0) / longest, bound)


@dataclass(frozen=True)
class DeviceLoad:
    """One device in a simulated step: ops, share of the time that it is busy, bytes."""

    device: str
    kind: str
    ops: int
    busy: float
    peak_memory: float
    memory: float
    headroom: float


LOAD_COLUMNS = (
    Column[DeviceLoad]("device", "device"),
    Column[DeviceLoad]("kind", "kind", words=True),
    Column[DeviceLoad]("ops", "ops"),
    Column[DeviceLoad]("busy", "busy", PERCENT),
    Column[DeviceLoad]("peak memory", "peak_memory", bytes_text),
    Column[DeviceLoad]("of", "memory", bytes_text),
    Column[DeviceLoad]("headroom", "headroom", bytes_text),
)


def describe_simulation(
    simulation: Simulation, *, problem: Problem, name: str = ""
) -> Answer:
    """Describe a simulated step: busy share and peak memory of every device.

    Args:
        simulation: The step.
        problem: What was placed.
        name: What the step is called on a page and in a trace.
    """

    def get_steps() -> list[Timeline]:
        """Return the step for a page and a trace."""
        return [from_simulation(problem, simulation, name)]

    # Programs have peak memory by name, people a row a device.
    busy = simulation.busy_share(problem.num_devices)
    peaks = simulation.peak_memory.tolist()
    rows = []
    peak_memory = {}
    for d, device in enumerate(problem.cluster.devices):
        peak_memory[device.name] = peaks[d]
        load = DeviceLoad(
            device=device.name,
            kind=device.kind,
            ops=int((simulation.device == d).sum()),
            busy=busy[d],
            peak_memory=peaks[d],
            memory=device.memory,
            headroom=device.memory - peaks[d],
        )
        rows.append(load)
    is_finite = np.isfinite(simulation.step_time)
    step = seconds_text(simulation.step_time) if is_finite else "none"
    lines = [f"predicted step time: {step}"]
    for fault in simulation.faults:
        lines.append(f"infeasible: {fault}")
    title = f"{problem.name}: predicted step"
    return Answer(
        title=title,
        sections=[Table(LOAD_COLUMNS, rows, title), Lines(lines)],
        data={
            "step_time": simulation.step_time,
            "peak_memory": peak_memory,
            "feasible": simulation.feasible,
        },
        page=lambda: make_page(problem, get_steps()),
        steps=get_steps,
    )


def memory_lines(problem: Problem, simulation: Simulation) -> list[str]:
    """Return peak memory and headroom of each device. Identical devices share a line."""
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


def describe_size(best: Size, *, sizes: Sequence[Size]) -> Answer:
    """Describe the best number of micro-batches among all that were tried."""
    return Answer("Micro-batches", [sizes_table(sizes, best)])


def sizes_table(sizes: Sequence[Size], chosen: Size) -> Table[Size]:
    """Describe the step time at every number of micro-batches."""
    return Table(
        columns=[
            Column("micro-batches", "microbatches"),
            Column("work on one device", "work", seconds_text),
            Column(
                "step, predicted",
                lambda size: None if size.result is None else size.result.step_time,
                seconds_text,
            ),
            Column(
                "remarks",
                lambda size: size.note or ("chosen" if size is chosen else ""),
                words=True,
            ),
        ],
        rows=sizes,
    )


@dataclass(frozen=True)
class IntervalRow:
    """One placer by the throughput objective; seconds. An error is why it has no placement."""

    placer: str
    interval: float | None = None
    interval_bound: float | None = None
    step_time: float | None = None
    seconds: float | None = None
    note: str | None = None
    error: str | None = None


def describe_intervals(
    problem: Problem, results: Sequence[Result | tuple[str, GnnplaceError]]
) -> Answer:
    """Describe placers by interval; the largest of their bounds holds for all.

    Args:
        problem: What was placed.
        results: Those of the throughput objective; one that could not stands with its error.
    """
    rows = []
    for result in results:
        # A placer that failed has a row with the reason.
        if isinstance(result, tuple):
            name, error = result
            rows.append(IntervalRow(name, error=str(error)))
            continue
        assert isinstance(result, ThroughputResult)
        row = IntervalRow(
            placer=result.placer,
            interval=result.interval,
            interval_bound=result.interval_bound,
            step_time=result.step_time,
            seconds=result.seconds,
            note=result.note,
        )
        rows.append(row)
    bound = max((row.interval_bound or 0.0 for row in rows), default=0.0)

    def gap(row: IntervalRow) -> float | None:
        """Return how far an interval is above the bound; None without either."""
        if row.interval is None or bound <= 0:
            return None
        return row.interval / bound - 1

    title = f"{problem.name} on {problem.num_devices} devices"
    table = Table(
        columns=[
            *data_columns(IntervalRow),
            Column("placer", "placer"),
            Column("interval, predicted", "interval", seconds_text),
            Column("above bound", gap, PERCENT),
            Column("step, predicted", "step_time", seconds_text),
            Column("found in", "seconds", seconds_text),
            Column("remarks", lambda row: row.error or row.note, words=True),
        ],
        rows=rows,
        title=title,
        key="rows",
        unknown=(None,),
        order=lambda row: (row.interval is None, row.interval),
    )
    return Answer(title, [table], {"problem": problem.name})


SUFFIXES = (".md", ".csv")
ALL = 10**9  # rows


def check_table(path: str | None) -> None:
    """Refuse a file that is neither Markdown nor CSV. None is allowed.

    Raises:
        InputError: naming what may be.
    """
    if path is not None and Path(path).suffix not in SUFFIXES:
        raise InputError(f"table {path!r}: name a file that ends in .md or .csv")


def placement_table(problem: Problem, placement: Placement) -> TextTable:
    """Describe every module on each device it has ops on, as the step needs them.

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
    headings = ["module", "device", "ops", "seconds", "bytes of state"]
    return text_table("", headings, rows)


PLAN_HEADINGS = (
    "module",
    "stage",
    "devices",
    "replicas x shards",
    "ZeRO",
    "recomputed",
)


def plan_table(plan: Plan) -> TextTable:
    """Describe every module in each stage that has some of it."""
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
    return text_table("", PLAN_HEADINGS, rows)


def find_moved_modules(before: Plan, after: Plan) -> dict[str, tuple[str, str]]:
    """Return where each module is in two plans of one model, if that differs."""

    def places(plan: Plan) -> dict[str, str]:
        by_module: dict[str, str] = {}
        for module, _, devices, mesh, zero, recomputed in plan_table(plan).rows:
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


def write_table(path: str | Path, table: Table[Any]) -> None:
    """Write a table atomically.

    Raises:
        InputError: neither .md nor .csv, or the file cannot be written.
    """
    check_table(str(path))
    is_csv = Path(path).suffix == ".csv"
    write_text(path, as_csv(table) if is_csv else as_markdown(table))
