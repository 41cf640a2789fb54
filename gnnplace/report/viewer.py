"""``viewer``: steps as a timeline to search, zoom and click in, with all that it needs inside.

The data stand in the page as one JSON object. Columns of numbers are the bytes of little-endian
arrays in base64. Ops, modules and reasons that several steps
share are there once. ``assets`` has the script; nothing is fetched from anywhere.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gnnplace.arrays import FloatArray
from gnnplace.problem import Problem
from gnnplace.report.html import Html, asset, heading
from gnnplace.report.layout import layout
from gnnplace.report.reasons import place_reasons, waits
from gnnplace.report.timeline import Naming, Timeline

SCRIPTS = ("words", "data", "view", "raster", "timeline", "memory", "search", "details", "graph",
           "pointer", "main")  # fmt: skip
NO_MODULE = "(no module)"


def viewer(
    timelines: Sequence[Timeline], *, beside: bool = False, title: str = "Timeline of one step"
) -> Html:
    """A section with a timeline; one a page.

    Args:
        timelines: steps to show, the first one first; at least one.
        beside: whether the second is shown beside the first to begin with.
        title: the section's heading.
    """
    held = json.dumps(viewer_data(timelines, beside=beside), separators=(",", ":"), allow_nan=False)
    script = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    # "<" could end the element that holds the data, or begin a comment in it.
    held = held.replace("<", "\\u003c")
    return Html(
        f"{heading(title)}{asset('viewer.html')}"
        f'<script type="application/json" id="data">{held}</script>\n'
        f'<script>\n"use strict";\n{script}</script>'
    )


def viewer_data(timelines: Sequence[Timeline], *, beside: bool = False) -> dict[str, Any]:
    """What the script reads, as plain data; seconds and bytes."""
    first: list[Timeline] = []  # of the steps of each graph
    graph = []
    for step in timelines:
        known = next((k for k, other in enumerate(first) if _alike(step, other)), len(first))
        first += [step] if known == len(first) else []
        graph.append(known)
    return {
        "graphs": [_graph(step.problem, step.named) for step in first],
        "steps": [_step(step, k) for step, k in zip(timelines, graph, strict=True)],
        "beside": beside,
    }


def _alike(one: Timeline, other: Timeline) -> bool:
    """Whether two steps are of one graph, read once or twice."""
    a, b = one.problem, other.problem
    return a is b or (
        a.graph.names == b.graph.names
        and a.cluster.devices == b.cluster.devices
        and list(one.named.module) == list(other.named.module)
        and np.array_equal(a.kind_times, b.kind_times)
        and np.array_equal(a.pin, b.pin)
    )


def packed(values: ArrayLike, kind: str) -> str:
    """Numbers as the bytes of a little-endian array of a kind such as ``f8``, in base64."""
    return b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode("ascii")


def _graph(problem: Problem, named: Naming) -> dict[str, Any]:
    modules: dict[str, int] = {}
    module = [modules.setdefault(name or NO_MODULE, len(modules)) for name in named.module]
    reasons, reason = place_reasons(problem, named.why)
    graph, drawn = problem.graph, layout(problem)
    made = np.bincount(graph.producer, graph.size * named.sized, problem.num_ops)
    found = {
        "names": list(graph.names),
        "modules": list(modules),
        "module": packed(module, "i4"),
        "covers": {k: list(named.covers[m]) for m, k in modules.items() if m in named.covers},
        "kinds": list(named.kinds),
        "kind": packed(named.kind, "u1"),
        "reasons": reasons,
        "reason": packed(reason, "i4"),
        "state": packed(problem.state, "f4"),
        "made": packed(made, "f4"),
        "device_kinds": list(problem.cluster.kinds),
        "seconds": packed(problem.kind_times.T, "f4"),
        "limits": problem.cluster.memory.tolist(),
    }
    if drawn is not None:
        numbers = {name: packed(getattr(drawn, name), "f4") for name in ("x", "y", "size")}
        found["layout"] = numbers | {"edges": packed(drawn.edges, "i4"), "tallest": drawn.tallest}
    return found


class Ticks:
    """Seconds of one step as whole numbers of 4 bytes, from its first instant to its last.

    A tick is what they are exact to: below a nanosecond in steps of up to four seconds.
    """

    def __init__(self, step: Timeline) -> None:
        held = [np.zeros(1), step.start, step.finish, step.moves.start, step.moves.finish]
        held += [times for times, _ in step.memory]
        self.origin = float(min(times.min() for times in held if len(times)))
        last = float(max(times.max() for times in held if len(times)))
        self.size = max(last - self.origin, 1e-30) / (2**32 - 1)

    def __call__(self, seconds: FloatArray) -> str:
        """Seconds, packed."""
        return packed(np.rint((seconds - self.origin) / self.size), "u4")


def _step(step: Timeline, graph: int) -> dict[str, Any]:
    held, moves, ticks = waits(step), step.moves, Ticks(step)
    return {
        "label": step.label,
        "name": step.name,
        "graph": graph,
        "step_time": step.step_time if np.isfinite(step.step_time) else None,
        "fault": step.fault,
        "devices": list(step.devices),
        "op": packed(step.op, "i4"),
        "device": packed(step.device, "u2"),
        "origin": ticks.origin,
        "tick": ticks.size,
        "start": ticks(step.start),
        "finish": ticks(step.finish),
        "critical": packed(held.critical, "u1"),
        "cause": {
            "kind": packed(held.kind, "u1"),
            "op": packed(held.op, "i4"),
            "transfer": packed(held.transfer, "i4"),
        },
        "transfers": {
            "op": packed(moves.op, "i4"),
            "source": packed(moves.source, "u2"),
            "target": packed(moves.target, "u2"),
            "start": ticks(moves.start),
            "finish": ticks(moves.finish),
            "bytes": packed(moves.bytes if step.named.sized else moves.bytes * np.nan, "f4"),
        },
        "memory": [[ticks(times), packed(held, "f4")] for times, held in step.memory],
    }
