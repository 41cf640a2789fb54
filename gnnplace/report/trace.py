"""Chrome Trace Event JSON, which Perfetto opens: one exporter for predicted and measured steps.

A process a timeline, a thread a device; ``X`` events are ops, ``s``/``f`` flow arrows transfers, a
counter track each device's memory. Times in microseconds, as the format has them (Google, "Trace
Event Format", 2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from gnnplace.files import write_json
from gnnplace.report.timeline import Timeline

MICRO = 1e6


def chrome_trace(timelines: Iterable[Timeline]) -> dict[str, Any]:
    """Return the trace of one or more steps side by side."""
    flow = count(1)
    events: list[dict[str, Any]] = []
    for pid, timeline in enumerate(timelines, 1):
        events += _names(pid, timeline)
        events += _ops(pid, timeline)
        events += _transfers(pid, timeline, flow)
        events += _memory(pid, timeline)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: str | Path, timelines: Iterable[Timeline]) -> None:
    """Write the trace atomically."""
    write_json(path, chrome_trace(timelines))


def _names(pid: int, timeline: Timeline) -> list[dict[str, Any]]:
    names = [
        {
            "ph": "M",
            "pid": pid,
            "name": "process_name",
            "args": {"name": timeline.label},
        }
    ]
    for tid, device in enumerate(timeline.devices):
        arguments = {"name": device}
        names.append(
            {
                "ph": "M",
                "pid": pid,
                "tid": tid,
                "name": "thread_name",
                "args": arguments,
            }
        )
    return names


def _ops(pid: int, timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "pid": pid,
            "tid": op.device,
            "name": op.name,
            "cat": op.phase,
            "ts": op.start * MICRO,
            "dur": (op.finish - op.start) * MICRO,
            "args": {"module": op.module, "phase": op.phase},
        }
        for op in timeline.ops
    ]


def _transfers(
    pid: int, timeline: Timeline, flow: Iterator[int]
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for transfer in timeline.transfers:
        common = {
            "pid": pid,
            "cat": "transfer",
            "name": transfer.name,
            "id": next(flow),
        }
        size = {"bytes": transfer.bytes}
        start = transfer.start * MICRO
        finish = transfer.finish * MICRO
        events.append(
            {**common, "ph": "s", "tid": transfer.source, "ts": start, "args": size}
        )
        events.append(
            {**common, "ph": "f", "bp": "e", "tid": transfer.target, "ts": finish}
        )
    return events


def _memory(pid: int, timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "ph": "C",
            "pid": pid,
            "name": f"memory {device}",
            "ts": at * MICRO,
            "args": {"bytes": size},
        }
        for device, (times, sizes) in zip(
            timeline.devices, timeline.memory, strict=False
        )
        for at, size in zip(times, sizes, strict=True)
    ]
