"""The headline table: every method beside data parallelism, over models, on each machine.

For each method its largest budget counts, and the geometric mean over seeds. Ratios over data
parallelism are geometric means over the models for which both have an answer, with 95 % bootstrap
intervals over models. Bytes are those of the fullest device of all models. Each method has its own
lower bound: the bound for placements does not hold for plans, which may split an op over devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.bench.standings import step_times
from gnnplace.bench.statistics import geometric_interval
from gnnplace.bench.tables import interval_text
from gnnplace.report import Axis, Series, TextTable, chart, text_table
from gnnplace.units import milliseconds_text

if TYPE_CHECKING:
    from gnnplace.report import Picture

PARALLEL = "ddp"  # data parallelism, as the planner calls it
PLANS = ("one-device", "zero-3", "megatron", "pipedream", "alpa", "pase", "plan")
DRAWN = (*PLANS, "expert", "min-cut", "gnn", "learned")
FARTHEST = 20.0  # ratio at either end of the picture
Row = Mapping[str, Any]


def headline_grids(rows: Sequence[Row]) -> list[TextTable]:
    """Return all machines in one table, then a table a machine.

    The list is empty without rows of data parallelism.
    """
    machines = list_machines(rows)
    if not machines:
        return []
    return [
        _short(rows, machines),
        *(
            _make_machine_table(machine_rows, name)
            for name, machine_rows in machines.items()
        ),
    ]


def list_machines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each machine; for every method those of its largest budget."""
    if not any(row["placer"] == PARALLEL for row in rows):
        return {}
    largest_budget: dict[str, float] = {}
    for row in rows:
        largest_budget[row["placer"]] = max(
            row["budget"], largest_budget.get(row["placer"], 0.0)
        )
    by_machine: dict[str, list[Row]] = {}
    for row in rows:
        if "cluster" in row and row["budget"] == largest_budget[row["placer"]]:
            by_machine.setdefault(str(row["cluster"]), []).append(row)
    return by_machine


def _times(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the step times in seconds, by method and problem."""
    methods = dict.fromkeys(str(row["placer"]) for row in rows)
    rows_by_method = {
        method: [row for row in rows if row["placer"] == method] for method in methods
    }
    times: dict[str, dict[str, float]] = {}
    for method, method_rows in rows_by_method.items():
        seconds = step_times(method_rows)
        times[method] = {problem[0]: s for problem, s in seconds.items()}
    return times


def _ratios(times: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the step time over data parallelism's, by method and problem that both solved."""
    base = times.get(PARALLEL, {})
    return {
        method: {p: s / base[p] for p, s in seconds.items() if p in base}
        for method, seconds in times.items()
    }


def _short(rows: Sequence[Row], machines: Mapping[str, Sequence[Row]]) -> TextTable:
    ratios = [_ratios(_times(machine_rows)) for machine_rows in machines.values()]
    all_rows = [row for machine_rows in machines.values() for row in machine_rows]
    lines = []
    for method in dict.fromkeys(str(row["placer"]) for row in all_rows):
        method_rows = [row for row in all_rows if row["placer"] == method]
        by_machine = [list(machine.get(method, {}).values()) for machine in ratios]
        overall = geometric_interval(list(chain.from_iterable(by_machine)))
        line = [
            method,
            *(interval_text(geometric_interval(each)) for each in by_machine),
            interval_text(overall),
            *_make_other_cells(method_rows),
        ]
        lines.append((overall.mean if overall else np.inf, line))
    heads = (
        "method",
        *machines,
        "all",
        "over its bound",
        "GB",
        "processor s",
        "failed",
    )
    ordered = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    return text_table("Step time over data parallelism, predicted", heads, ordered)


def _make_other_cells(rows: Sequence[Row]) -> list[str]:
    """Return cells of a table: the ratio over the lower bound, bytes, seconds and failures.

    Bytes are those of the fullest device, seconds those of processors.
    """
    feasible = [row for row in rows if row["feasible"]]
    bounded = [row for row in feasible if row.get("lower_bound")]
    bound = geometric_interval(
        [row["step_time"] / row["lower_bound"] for row in bounded]
    )
    peak_bytes = max(
        (max(row.get("peak_memory") or [0.0]) for row in feasible), default=0.0
    )
    timed = [row for row in feasible if "processor_seconds" in row]
    seconds = "-"
    if timed:
        seconds = f"{np.mean([row['processor_seconds'] for row in timed]):.3g}"
    return [
        f"{bound.mean:.3f}" if bound else "-",
        f"{peak_bytes / 1e9:.3g}",
        seconds,
        f"{len(rows) - len(feasible)} of {len(rows)}",
    ]


def _make_machine_table(rows: Sequence[Row], machine: str) -> TextTable:
    """Return the table of step times of every method and model on a machine."""
    times = _times(rows)
    ratios = _ratios(times)
    models = dict.fromkeys(str(row["problem"]) for row in rows)
    names = _names(rows)
    lines = []
    for method, seconds in times.items():
        ratio = geometric_interval(list(ratios[method].values()))
        cells = [milliseconds_text(seconds[p]) if p in seconds else "-" for p in models]
        lines.append(
            (ratio.mean if ratio else np.inf, [method, *cells, interval_text(ratio)])
        )
    heads = ("method", *(names[p] for p in models), "over data parallelism")
    ordered = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    return text_table(f"Step times on {machine}, ms, predicted", heads, ordered)


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """Return the name of each problem's model."""
    return {
        r["problem"]: str(r.get("family", r["problem"])).removeprefix("hf:")
        for r in rows
    }


def headline_plot(rows: Sequence[Row], machine: str) -> Picture:
    """Plot the step time over data parallelism's, a line a model and a dot a method."""
    ratios = _ratios(_times(rows))
    names = _names(rows)
    models = list(dict.fromkeys(str(row["problem"]) for row in rows))
    series = []
    for method in (name for name in DRAWN if name in ratios):
        points = [(r, models.index(p)) for p, r in ratios[method].items()]
        hints = [
            f"{method}, {names[models[k]]}: {r:.3f} of data parallelism"
            for r, k in points
        ]
        x = [min(max(r, 1 / FARTHEST), FARTHEST) for r, _ in points]
        series.append(
            Series(method, x, [float(k) for _, k in points], told=hints, joined="none")
        )
    axes = (
        Axis("step time over data parallelism", logarithmic=True),
        Axis(
            "",
            limits=(-0.5, len(models) - 0.5),
            ticks=[float(k) for k in range(len(models))],
            text=lambda k: (
                names[models[round(k)]] if 0 <= round(k) < len(models) else ""
            ),
        ),
    )
    return chart(
        series,
        axes,
        title=f"Every method beside data parallelism on {machine}, predicted",
    )
