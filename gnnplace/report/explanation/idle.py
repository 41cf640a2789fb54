"""Where the seconds of each device go: computing, and the causes of not computing.

At an instant at which a device computes nothing, it copies what it sends itself; or its next op has
an input that another device has not made yet; or one that is on its way; or else messages cost it
time; or it has no next op. The five and computing sum to the step time on every device.
Complexity: O(n + consumptions + copies).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnplace.report.explanation.causes import Causes

Interval = tuple[float, float]


@dataclass(frozen=True)
class DeviceTime:
    """Seconds of one device.

    Attributes:
        computing: of its ops.
        other_device: waiting for what another device has not made yet.
        transfer: waiting for what is on its way to it.
        messages: copies that it makes itself, and overheads of messages.
        nothing_left: after its last op; all of it where it has no op.
    """

    computing: float = 0.0
    other_device: float = 0.0
    transfer: float = 0.0
    messages: float = 0.0
    nothing_left: float = 0.0

    @property
    def idle(self) -> float:
        """All that is not computing."""
        return self.other_device + self.transfer + self.messages + self.nothing_left


def device_times(causes: Causes) -> list[DeviceTime]:
    """Where the step's seconds go on each device. [D]"""
    return [_device_time(causes, d) for d in range(causes.problem.num_devices)]


def _device_time(causes: Causes, device: int) -> DeviceTime:
    s = causes.simulation
    free = computing = other = transfer = messages = 0.0
    sends = [
        (float(s.transfers.start[k]), float(s.transfers.end[k])) for k in causes.copies[device]
    ]
    sent = 0  # copies that end before the gap
    for op in causes.sequences[device].tolist():
        start, finish = float(s.start[op]), float(s.finish[op])
        while sent < len(sends) and sends[sent][1] <= free:
            sent += 1
        made, there = _inputs(causes, op)
        copying = _within(sends[sent:], (free, start)) if start > free else []
        waits = _pieces(copying, (free, start))
        other += sum(_overlap(wait, (0.0, made)) for wait in waits)
        transfer += sum(_overlap(wait, (made, max(made, there))) for wait in waits)
        messages += sum(_overlap(wait, (max(made, there), np.inf)) for wait in waits)
        messages += sum(end - begin for begin, end in copying)
        computing, free = computing + finish - start, finish
    left = float(s.step_time) - free
    copying = _within(sends, (free, float(s.step_time)))
    last = sum(end - begin for begin, end in copying)
    return DeviceTime(computing, other, transfer, messages + last, left - last)


def _inputs(causes: Causes, op: int) -> tuple[float, float]:
    """Seconds at which other devices have made all inputs of an op, and at which they are there."""
    s, incoming = causes.simulation, causes.incoming[op]
    if not incoming:
        return 0.0, 0.0
    return (
        float(s.finish[causes.producer[incoming]].max()),
        float(s.transfers.arrival[incoming].max()),
    )


def _within(sends: list[Interval], gap: Interval) -> list[Interval]:
    """The parts of copies that are in a gap; copies of one device come one after the other."""
    found = []
    for begin, end in sends:
        if begin >= gap[1]:
            break
        if _overlap((begin, end), gap) > 0:
            found.append((max(begin, gap[0]), min(end, gap[1])))
    return found


def _pieces(copying: list[Interval], gap: Interval) -> list[Interval]:
    """What is left of a gap beside copies."""
    found, at = [], gap[0]
    for begin, end in copying:
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    return [*found, (at, gap[1])] if gap[1] > at else found


def _overlap(one: Interval, other: Interval) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
