"""A self-contained HTML page: timeline, memory curves, comparison, the graph coloured by device.

The page is ``page.html`` with the data as JSON inside; nothing is fetched from anywhere.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.files import write_text
from gnnplace.graph.ranks import levels
from gnnplace.problem import PHASES, Problem
from gnnplace.report.rows import Row
from gnnplace.report.timeline import Timeline
from gnnplace.report.units import seconds_text

MOST_NODES = 4_000
MOST_EDGES = 12_000


def write_page(
    path: str | Path,
    problem: Problem,
    rows: Sequence[Row],
    timelines: Sequence[Timeline],
    device: NDArray[np.int32],
) -> None:
    """Writes the page atomically.

    Args:
        path: where to.
        problem: what was placed.
        rows: the comparison.
        timelines: steps to show, the first one first.
        device: device of each op, for the graph. [n]
    """
    write_text(path, page(problem, rows, timelines, device))


def page(
    problem: Problem,
    rows: Sequence[Row],
    timelines: Sequence[Timeline],
    device: NDArray[np.int32],
) -> str:
    """The page's text; arguments as for ``write_page``."""
    template = (files("gnnplace.report") / "page.html").read_text(encoding="utf-8")
    # "</" would end the script element that holds the data.
    data = json.dumps(page_data(problem, rows, timelines, device)).replace("</", "<\\/")
    return template.replace("__TITLE__", html.escape(problem.name)).replace("__DATA__", data)


def page_data(
    problem: Problem,
    rows: Sequence[Row],
    timelines: Sequence[Timeline],
    device: NDArray[np.int32],
) -> dict[str, Any]:
    """Everything that the page shows, as plain data."""
    placed = [row for row in rows if row.predicted is not None]
    return {
        "title": f"{problem.name} on {problem.num_devices} devices",
        "facts": _facts(problem),
        "cards": _cards(placed),
        "rows": [row.data() for row in sorted(rows, key=lambda row: row.predicted or np.inf)],
        "devices": [d.name for d in problem.cluster.devices],
        "limits": problem.cluster.memory.tolist(),
        "timelines": [_timeline(timeline) for timeline in timelines],
        "graph": graph_data(problem, device),
    }


def _facts(problem: Problem) -> str:
    estimated = float(problem.estimated.mean())
    origin = "measured" if estimated == 0 else "estimated" if estimated == 1 else "partly measured"
    kinds = ", ".join(problem.cluster.kinds)
    return (
        f"{problem.num_ops} ops in {problem.num_units} placement units, "
        f"{problem.microbatches} micro-batch{'es' if problem.microbatches > 1 else ''}, "
        f"{origin} op times, devices of kind {kinds}; gnnplace {version('gnnplace')}"
    )


def _cards(placed: list[Row]) -> list[tuple[str, str]]:
    if not placed:
        return [("none", "no feasible placement was found")]
    run = [row for row in placed if row.executed] or placed
    best = min(run, key=lambda row: row.predicted or np.inf)
    single = next((row for row in placed if row.placer == "single"), None)
    cards = [(seconds_text(best.predicted), f"predicted step time, {best.placer}")]
    if best.executed:
        cards.append((seconds_text(best.executed), f"{best.mode} step time, {best.placer}"))
    if single and single.executed and best.executed:
        speedup = f"{single.executed / best.executed:.2f}x"
        cards.append((speedup, f"{best.mode} speed-up over one device"))
    elif single and single.predicted and best.predicted:
        speedup = f"{single.predicted / best.predicted:.2f}x"
        cards.append((speedup, "predicted speed-up over one device"))
    if best.lower_bound:
        cards.append((f"{best.gap or 0.0:.1%}", "at most so far from the best possible"))
    return cards


def _timeline(timeline: Timeline) -> dict[str, Any]:
    finite = np.isfinite(timeline.step_time)
    return {
        "label": timeline.label,
        "step_time": timeline.step_time if finite else None,
        "devices": list(timeline.devices),
        "ops": [[o.name, o.device, o.start, o.finish, o.phase, o.module] for o in timeline.ops],
        "transfers": [
            [t.name, t.source, t.target, t.start, t.finish, t.bytes] for t in timeline.transfers
        ],
        "memory": [[list(times), list(sizes)] for times, sizes in timeline.memory],
    }


def graph_data(problem: Problem, device: NDArray[np.int32]) -> dict[str, Any]:
    """Nodes as (name, x, y, device, radius, phase) with x, y in 0..1, edges as index pairs."""
    source, target, _ = problem.graph.edges
    if problem.num_ops > MOST_NODES or len(source) > MOST_EDGES:
        note = f"The graph has {problem.num_ops} ops and is not drawn (over {MOST_NODES})."
        return {"nodes": [], "edges": [], "height": 0, "note": note}
    level, y, tallest = _layout(problem)
    work = np.where(np.isfinite(problem.times), problem.times, 0.0).max(axis=1)
    radius = 2.2 + 5.0 * np.sqrt(work / max(work.max(), 1e-300))
    x = level / max(1, level.max())
    nodes = [
        [name, float(x[i]), float(y[i]), int(device[i]), float(radius[i]), PHASES[problem.phase[i]]]
        for i, name in enumerate(problem.graph.names)
    ]
    note = "Left to right: depth in the graph. Size: time. Red edges cross devices."
    edges = [[int(a), int(b)] for a, b in zip(source, target, strict=True)]
    return {"nodes": nodes, "edges": edges, "height": tallest, "note": note}


def _layout(problem: Problem) -> tuple[NDArray[np.int32], NDArray[np.float64], int]:
    """Levels, vertical places in 0..1 and the largest level: each op near its inputs' mean."""
    graph, level = problem.graph, levels(problem.graph)
    y = np.full(graph.num_ops, 0.5)
    tallest = int(np.bincount(level).max())
    for depth in range(int(level.max()) + 1):
        ops = np.flatnonzero(level == depth)
        wish = [y[graph.predecessors(int(op))].mean() if depth else 0.5 for op in ops]
        ops = ops[np.argsort(wish, kind="stable")]
        room = min(1.0, len(ops) / max(1, tallest) + 0.12)
        y[ops] = 0.5 + room * ((np.arange(len(ops)) + 0.5) / len(ops) - 0.5)
    return level, y, tallest
