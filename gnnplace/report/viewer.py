"""``viewer``: steps as a timeline to search, zoom and click in, with all that it needs inside.

The data stand in the page as one JSON object. Columns of numbers are the bytes of little-endian
arrays in base64. Ops, modules and reasons that several steps
share are there once. ``assets`` has the script; nothing is fetched from anywhere.

Where the ops of a graph are drawn: from left to right by depth, each near its inputs' mean.

Why each op is where it is, as far as the problem says it; and what holds it until it starts.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.explaining import COMPUTING, Cause, Causes, find_critical_path
from gnnplace.graph import levels
from gnnplace.problem import Problem
from gnnplace.report.html import Html, asset, heading
from gnnplace.report.timeline import Naming, Timeline
from gnnplace.units import names_text

MOST_NODES = 4_000
MOST_EDGES = 12_000


@dataclass(frozen=True, eq=False)
class Layout:
    """A drawing of a graph.

    Attributes:
        x: place from the left, in 0..1. [num_ops]
        y: place from above, in 0..1. [num_ops]
        size: radius of each dot in pixels; its area grows with the op's seconds. [num_ops]
        edges: pairs of ops. [E, 2]
        tallest: the most ops of one depth.
    """

    x: FloatArray
    y: FloatArray
    size: FloatArray
    edges: IntArray
    tallest: int


def layout(problem: Problem) -> Layout | None:
    """Lay out the drawing; None for a graph that is too large to be looked at."""
    source, target, _ = problem.graph.edges
    if problem.num_ops > MOST_NODES or len(source) > MOST_EDGES:
        return None
    level, y, tallest = _place_ops(problem)
    work = np.where(np.isfinite(problem.times), problem.times, 0.0).max(axis=1)
    size = 2.2 + 5.0 * np.sqrt(work / max(work.max(), 1e-300))
    edges = np.stack([source, target], axis=1).astype(np.int32)
    return Layout(level / max(1, level.max()), y, size, edges, tallest)


def _place_ops(problem: Problem) -> tuple[IntArray, FloatArray, int]:
    """Return each op's level, its vertical position in 0..1, and the most ops of a level."""
    graph = problem.graph
    level = levels(problem.graph)
    y = np.full(graph.num_ops, 0.5)
    tallest = int(np.bincount(level).max())
    for depth in range(int(level.max()) + 1):
        ops = np.flatnonzero(level == depth)
        wish = [y[graph.predecessors(int(op))].mean() if depth else 0.5 for op in ops]
        ops = ops[np.argsort(wish, kind="stable")]
        room = min(1.0, len(ops) / max(1, tallest) + 0.12)
        y[ops] = 0.5 + room * ((np.arange(len(ops)) + 0.5) / len(ops) - 0.5)
    return level, y, tallest


UNKNOWN = 255
NOTHING = 0
DEVICE = 1
ARRIVAL = 2
COPY = 3
MOST_NAMED = 4


@dataclass(frozen=True, eq=False)
class Waits:
    """The reasons why each op of a step starts when it does. m ops.

    Attributes:
        kind: DEVICE, ARRIVAL of a tensor, a COPY that its own device makes, NOTHING or UNKNOWN. [m]
        op: the op that it waits for, -1 for none. [m]
        transfer: the transfer that it waits for, -1 for none. [m]
        critical: whether it is on the critical path. [m]
    """

    kind: NDArray[np.uint8]
    op: IntArray
    transfer: IntArray
    critical: BoolArray


def waits(step: Timeline) -> Waits:
    """Return what the ops of a predicted step wait for; unknown of a run."""
    count = len(step.op)
    causes_of_ops = Waits(
        np.full(count, UNKNOWN, dtype=np.uint8),
        np.full(count, -1, dtype=np.int32),
        np.full(count, -1, dtype=np.int32),
        np.zeros(count, dtype=bool),
    )
    if step.simulation is None or not count:
        return causes_of_ops
    causes = Causes(step.problem, step.simulation)
    for op in range(count):
        _note(causes_of_ops, op, causes.of(op))
    path = [piece.op for piece in find_critical_path(causes) if piece.kind == COMPUTING]
    causes_of_ops.critical[path] = True
    return causes_of_ops


def _note(found: Waits, op: int, cause: Cause | None) -> None:
    if cause is None:
        found.kind[op] = NOTHING
        return
    sent = COPY if cause.copies else ARRIVAL
    found.kind[op] = DEVICE if cause.transfer < 0 else sent
    found.op[op], found.transfer[op] = cause.op, cause.transfer


def place_reasons(problem: Problem, free: str) -> tuple[list[str], IntArray]:
    """Return the different sentences, and the index of each op's. [num_ops]

    Args:
        problem: what was placed.
        free: what is said of an op that may be anywhere.
    """
    shared = Counter(problem.colocate)
    numbers: dict[str, int] = {}
    texts = (_reason(problem, op, shared) or free for op in range(problem.num_ops))
    index = [numbers.setdefault(text, len(numbers)) for text in texts]
    return list(numbers), np.array(index, dtype=np.int32)


def _reason(problem: Problem, op: int, shared: Counter[str | None]) -> str:
    devices = problem.cluster.devices
    parts = []
    group = problem.colocate[op]
    if problem.pin[op] >= 0:
        parts.append(f"It is pinned to {devices[problem.pin[op]].name}.")
    elif not problem.allowed[op].all():
        names = [devices[d].name for d in np.flatnonzero(problem.allowed[op])]
        parts.append(f"It may be on {names_text(names, MOST_NAMED)} alone.")
    if group is not None and shared[group] > 1:
        parts.append(
            f"It shares a device with {shared[group] - 1} other ops, all of class {group}."
        )
    return " ".join(parts)


SCRIPTS = (
    "words",
    "data",
    "view",
    "raster",
    "timeline",
    "memory",
    "search",
    "details",
    "graph",
    "pointer",
    "main",
)
NO_MODULE = "(no module)"


def viewer(
    timelines: Sequence[Timeline],
    *,
    beside: bool = False,
    title: str = "Timeline of one step",
) -> Html:
    """Make a section with a timeline; one a page.

    Args:
        timelines: steps to show, the first one first; at least one.
        beside: whether the second is shown beside the first to begin with.
        title: the section's heading.
    """
    data = json.dumps(
        viewer_data(timelines, beside=beside), separators=(",", ":"), allow_nan=False
    )
    script = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    # "<" could end the element that holds the data, or begin a comment in it.
    data = data.replace("<", "\\u003c")
    return Html(
        f"{heading(title)}{asset('viewer.html')}"
        f'<script type="application/json" id="data">{data}</script>\n'
        f'<script>\n"use strict";\n{script}</script>'
    )


def viewer_data(
    timelines: Sequence[Timeline], *, beside: bool = False
) -> dict[str, Any]:
    """Return what the script reads as plain data, in seconds and bytes."""
    first: list[Timeline] = []  # of the steps of each graph
    graph = []
    for step in timelines:
        index = next(
            (k for k, earlier in enumerate(first) if _are_same_graph(step, earlier)),
            len(first),
        )
        first += [step] if index == len(first) else []
        graph.append(index)
    return {
        "graphs": [_graph(step.problem, step.named) for step in first],
        "steps": [_step(step, k) for step, k in zip(timelines, graph, strict=True)],
        "beside": beside,
    }


def _are_same_graph(one: Timeline, other: Timeline) -> bool:
    """Return whether two steps are of the same graph, even if it was read twice."""
    a = one.problem
    b = other.problem
    return a is b or (
        a.graph.names == b.graph.names
        and a.cluster.devices == b.cluster.devices
        and list(one.named.module) == list(other.named.module)
        and np.array_equal(a.kind_times, b.kind_times)
        and np.array_equal(a.pin, b.pin)
    )


def pack_numbers(values: ArrayLike, kind: str) -> str:
    """Return numbers as a little-endian array of a kind such as ``f8``, in base64."""
    return b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode(
        "ascii"
    )


def _graph(problem: Problem, named: Naming) -> dict[str, Any]:
    modules: dict[str, int] = {}
    module = [
        modules.setdefault(name or NO_MODULE, len(modules)) for name in named.module
    ]
    reasons, reason = place_reasons(problem, named.why)
    graph = problem.graph
    drawn = layout(problem)
    output_bytes = np.bincount(
        graph.producer, graph.size * named.sized, problem.num_ops
    )
    data = {
        "names": list(graph.names),
        "modules": list(modules),
        "module": pack_numbers(module, "i4"),
        "covers": {
            k: list(named.covers[m]) for m, k in modules.items() if m in named.covers
        },
        "kinds": list(named.kinds),
        "kind": pack_numbers(named.kind, "u1"),
        "reasons": reasons,
        "reason": pack_numbers(reason, "i4"),
        "state": pack_numbers(problem.state, "f4"),
        "made": pack_numbers(output_bytes, "f4"),
        "device_kinds": list(problem.cluster.kinds),
        "seconds": pack_numbers(problem.kind_times.T, "f4"),
        "limits": problem.cluster.memory.tolist(),
    }
    if drawn is not None:
        numbers = {
            name: pack_numbers(getattr(drawn, name), "f4")
            for name in ("x", "y", "size")
        }
        data["layout"] = numbers | {
            "edges": pack_numbers(drawn.edges, "i4"),
            "tallest": drawn.tallest,
        }
    return data


class Ticks:
    """Seconds of one step as whole numbers of 4 bytes, from its first instant to its last.

    A tick is what they are exact to: below a nanosecond in steps of up to four seconds.
    """

    def __init__(self, step: Timeline) -> None:
        instants = [
            np.zeros(1),
            step.start,
            step.finish,
            step.moves.start,
            step.moves.finish,
        ]
        instants += [times for times, _ in step.memory]
        self.origin = float(min(times.min() for times in instants if len(times)))
        last = float(max(times.max() for times in instants if len(times)))
        self.size = max(last - self.origin, 1e-30) / (2**32 - 1)

    def __call__(self, seconds: FloatArray) -> str:
        """Return seconds, rounded to ticks and packed."""
        return pack_numbers(np.rint((seconds - self.origin) / self.size), "u4")


def _step(step: Timeline, graph: int) -> dict[str, Any]:
    causes = waits(step)
    moves = step.moves
    ticks = Ticks(step)
    return {
        "label": step.label,
        "name": step.name,
        "graph": graph,
        "step_time": step.step_time if np.isfinite(step.step_time) else None,
        "fault": step.fault,
        "devices": list(step.devices),
        "op": pack_numbers(step.op, "i4"),
        "device": pack_numbers(step.device, "u2"),
        "origin": ticks.origin,
        "tick": ticks.size,
        "start": ticks(step.start),
        "finish": ticks(step.finish),
        "critical": pack_numbers(causes.critical, "u1"),
        "cause": {
            "kind": pack_numbers(causes.kind, "u1"),
            "op": pack_numbers(causes.op, "i4"),
            "transfer": pack_numbers(causes.transfer, "i4"),
        },
        "transfers": {
            "op": pack_numbers(moves.op, "i4"),
            "source": pack_numbers(moves.source, "u2"),
            "target": pack_numbers(moves.target, "u2"),
            "start": ticks(moves.start),
            "finish": ticks(moves.finish),
            "bytes": pack_numbers(
                moves.bytes if step.named.sized else moves.bytes * np.nan, "f4"
            ),
        },
        "memory": [
            [ticks(times), pack_numbers(sizes, "f4")] for times, sizes in step.memory
        ],
    }
