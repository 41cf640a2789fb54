"""The headline table: every method beside data parallelism, over models, on each machine.

Of each method its largest budget counts, and of seeds the geometric mean. Ratios over data
parallelism are geometric means over the models that both have an answer for, with 95 % bootstrap
intervals over models; bytes are those of the fullest device of all models; a method's lower bound
is its own: that of placements bounds no plan, which may split an op over devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.bench.standings import step_times
from gnnplace.bench.statistics import geometric_interval
from gnnplace.bench.tables import Grid, interval_text
from gnnplace.report import Axis, Series, chart

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure

PARALLEL = "ddp"  # data parallelism, as the planner calls it
PLANS = ("one-device", "zero-3", "megatron", "pipedream", "alpa", "pase", "plan")
DRAWN = (*PLANS, "expert", "min-cut", "gnn", "learned")
FARTHEST = 20.0  # ratio at either end of the picture
Row = Mapping[str, Any]


def headline_grids(rows: Sequence[Row]) -> list[Grid]:
    """Return all machines in one table, then a table a machine.

    The list is empty without rows of data parallelism.
    """
    machines = machines_of(rows)
    if not machines:
        return []
    return [
        _short(rows, machines),
        *(_of_machine(own, name) for name, own in machines.items()),
    ]


def machines_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each machine; for every method those of its largest budget."""
    if not any(row["placer"] == PARALLEL for row in rows):
        return {}
    most: dict[str, float] = {}
    for row in rows:
        most[row["placer"]] = max(row["budget"], most.get(row["placer"], 0.0))
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "cluster" in row and row["budget"] == most[row["placer"]]:
            found.setdefault(str(row["cluster"]), []).append(row)
    return found


def _times(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the step times in seconds, by method and problem."""
    methods = dict.fromkeys(str(row["placer"]) for row in rows)
    own = {who: [row for row in rows if row["placer"] == who] for who in methods}
    return {
        who: {p[0]: s for p, s in step_times(mine).items()} for who, mine in own.items()
    }


def _ratios(times: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the step time over data parallelism's, by method and problem that both solved."""
    base = times.get(PARALLEL, {})
    return {
        who: {p: s / base[p] for p, s in own.items() if p in base}
        for who, own in times.items()
    }


def _short(rows: Sequence[Row], machines: Mapping[str, Sequence[Row]]) -> Grid:
    ratios = [_ratios(_times(own)) for own in machines.values()]
    every = [row for own in machines.values() for row in own]
    lines = []
    for who in dict.fromkeys(str(row["placer"]) for row in every):
        mine = [row for row in every if row["placer"] == who]
        shown = [geometric_interval(list(one.get(who, {}).values())) for one in ratios]
        whole = geometric_interval(
            [r for one in ratios for r in one.get(who, {}).values()]
        )
        line = [who, *map(interval_text, shown), interval_text(whole), *_beside(mine)]
        lines.append((whole.mean if whole else np.inf, line))
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
    return Grid("Step time over data parallelism, predicted", heads, ordered)


def _beside(rows: Sequence[Row]) -> list[str]:
    """Return cells of a table: the ratio over the lower bound, bytes, seconds and failures.

    Bytes are those of the fullest device, seconds those of processors.
    """
    fine = [row for row in rows if row["feasible"]]
    bound = geometric_interval(
        [
            row["step_time"] / row["lower_bound"]
            for row in fine
            if row.get("lower_bound")
        ]
    )
    held = max((max(row.get("peak_memory") or [0.0]) for row in fine), default=0.0)
    spent = [row["processor_seconds"] for row in fine if "processor_seconds" in row]
    seconds = f"{np.mean(spent):.3g}" if spent else "-"
    return [
        f"{bound.mean:.3f}" if bound else "-",
        f"{held / 1e9:.3g}",
        seconds,
        f"{len(rows) - len(fine)} of {len(rows)}",
    ]


def _of_machine(rows: Sequence[Row], machine: str) -> Grid:
    """Return the table of step times of every method and model on a machine."""
    times = _times(rows)
    ratios = _ratios(times)
    models = dict.fromkeys(str(row["problem"]) for row in rows)
    names, lines = _names(rows), []
    for who, own in times.items():
        ratio = geometric_interval(list(ratios[who].values()))
        shown = [f"{1e3 * own[p]:.4g}" if p in own else "-" for p in models]
        lines.append(
            (ratio.mean if ratio else np.inf, [who, *shown, interval_text(ratio)])
        )
    heads = ("method", *(names[p] for p in models), "over data parallelism")
    ordered = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    return Grid(f"Step times on {machine}, ms, predicted", heads, ordered)


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """Return the name of each problem's model."""
    return {
        r["problem"]: str(r.get("family", r["problem"])).removeprefix("hf:")
        for r in rows
    }


def headline_plot(rows: Sequence[Row], machine: str) -> Figure:
    """Plot the step time over data parallelism's, a line a model and a dot a method."""
    ratios, names = _ratios(_times(rows)), _names(rows)
    models = list(dict.fromkeys(str(row["problem"]) for row in rows))
    series = []
    for who in (name for name in DRAWN if name in ratios):
        points = [(r, models.index(p)) for p, r in ratios[who].items()]
        told = [
            f"{who}, {names[models[k]]}: {r:.3f} of data parallelism" for r, k in points
        ]
        x = [min(max(r, 1 / FARTHEST), FARTHEST) for r, _ in points]
        series.append(
            Series(who, x, [float(k) for _, k in points], told=told, joined="none")
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
