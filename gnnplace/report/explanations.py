"""Explanations and differences of placements.

What ``place`` says of its answer: devices used and idle, one device beside, what to try next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.explaining import (
    COMPUTING,
    PIECE_KINDS,
    WORTH,
    Advice,
    Explanation,
    PlacementDifference,
    Side,
)
from gnnplace.placers import Result
from gnnplace.problem import Placement, Problem
from gnnplace.report.answer import (
    Answer,
    Column,
    Lines,
    Section,
    Table,
    TextTable,
    text_table,
)
from gnnplace.report.timeline import Timeline, from_simulation, make_page
from gnnplace.simulation import Simulation
from gnnplace.units import bytes_text, names_text, seconds_text

if TYPE_CHECKING:
    from gnnplace.explaining import Alternative, DeviceTime, Loosened, Move

MOST_ROWS = 12
MOST_MOVES = 24
NO_LIMIT = 1e29  # bytes from which on a device's memory is none
IDLE = {
    "other_device": "waits for another device",
    "transfer": "waits for a transfer",
    "messages": "messages",
    "nothing_left": "nothing left to do",
}
"""Headings of what keeps a device from computing, by the name of its seconds."""


def describe_explanation(explanation: Explanation) -> Answer:
    """Describe what bounds a placement's step, and what else would cost."""
    simulation = explanation.simulation
    bounds = explanation.bounds
    if bounds.best > 0:
        gap = simulation.step_time / bounds.best - 1.0
    else:
        gap = 0.0
    shares = ", ".join(
        f"{kind} {share:.0%}" for kind, share in explanation.shares.items() if share
    )
    ops = sum(piece.kind == COMPUTING for piece in explanation.pieces)
    lines = [
        f"{explanation.problem.name}: predicted step {seconds_text(simulation.step_time)}; no "
        f"placement can be below {seconds_text(bounds.best)} (by {bounds.binding}), so it is "
        f"within {gap:.1%} of the best",
        f"critical path: {ops} ops; {shares}",
    ]
    sections: list[Section] = [
        Lines(lines),
        _path_table(explanation),
        device_table(explanation.problem, simulation, explanation.devices),
    ]
    data = {
        "step_time": simulation.step_time,
        "lower_bound": bounds.best,
        "bound_by": bounds.binding,
        "critical_path": _path_data(explanation),
    }
    if explanation.question:
        sections.append(_alternatives_table(explanation))
        data["asked"] = explanation.question
        data["now"] = list(explanation.current_devices)
    if explanation.prices is not None:
        sections.append(_prices_table(explanation))
    return Answer(explanation.problem.name, sections, data)


def _finite(value: float) -> float | None:
    """Return a number; None if it is not finite, as of a step that cannot run."""
    return value if np.isfinite(value) else None


def _path_table(explanation: Explanation) -> TextTable:
    rows = explanation.by_module()
    total = explanation.simulation.step_time
    if len(rows) > MOST_ROWS:
        remaining = {
            k: sum(seconds[k] for _, seconds in rows[MOST_ROWS:]) for k in PIECE_KINDS
        }
        rows = [*rows[:MOST_ROWS], (f"{len(rows) - MOST_ROWS} others", remaining)]
    lines = []
    for name, seconds in rows:
        seconds_in_all = sum(seconds.values())
        cells = [
            name,
            seconds_text(seconds_in_all),
            f"{seconds_in_all / total:.1%}",
        ]
        for kind in PIECE_KINDS:
            if seconds[kind]:
                cells.append(seconds_text(seconds[kind]))
            else:
                cells.append("")
        lines.append(cells)
    headings = ["module", "seconds", "share", *PIECE_KINDS]
    return text_table("critical path by module", headings, lines)


@dataclass(frozen=True)
class DeviceStep:
    """One device in a step: its seconds by cause, and its bytes."""

    device: str
    busy: float
    time: DeviceTime
    peak_memory: float
    limit: float | None


def device_table(
    problem: Problem, simulation: Simulation, times: Sequence[DeviceTime]
) -> Table[DeviceStep]:
    """Describe where each device's seconds go, in shares of the step, and its memory.

    Args:
        problem: What was placed.
        simulation: The step.
        times: Times of each device.
    """
    total = max(simulation.step_time, 1e-300)

    def share(seconds: float) -> str:
        """Format seconds as a part of the step; none of it is empty."""
        return f"{seconds / total:.1%}" if seconds > 0 else ""

    rows = []
    for d, device in enumerate(problem.cluster.devices):
        limit = None
        if device.memory < NO_LIMIT:
            limit = device.memory
        step = DeviceStep(
            device=device.name,
            busy=times[d].computing / total,
            time=times[d],
            peak_memory=simulation.peak_memory[d],
            limit=limit,
        )
        rows.append(step)
    # Each cause of idle time has a column.
    waits: list[Column[DeviceStep]] = []
    for cause, heading in IDLE.items():
        waits.append(Column(heading, attrgetter(f"time.{cause}"), share, cause))
    return Table(
        columns=[
            Column("device", "device", key="device"),
            Column("busy", "busy", "{:.1%}".format),
            Column(
                "computing", attrgetter("time.computing"), seconds_text, "computing"
            ),
            *waits,
            Column("peak memory", "peak_memory", bytes_text),
            Column("limit", "limit", bytes_text),
        ],
        rows=rows,
        title="each device's step",
        key="devices",
        keyed=True,
    )


def _alternatives_table(explanation: Explanation) -> Table[Alternative]:
    names = [device.name for device in explanation.problem.cluster.devices]
    step = explanation.simulation.step_time
    current = ", ".join(explanation.current_devices)

    def remark(choice: Alternative) -> str:
        """Say why an alternative cannot be, or that it is what is."""
        if choice.fault:
            return f"cannot be: {choice.fault}"
        return "" if choice.num_moved else "as it is"

    return Table(
        columns=[
            Column("device", lambda row: names[row.device], key="device"),
            Column("ops moved", "num_moved", key="ops_moved"),
            Column(
                "step", lambda row: _finite(row.step_time), seconds_text, "step_time"
            ),
            Column(
                "change",
                lambda row: _finite(row.step_time / step - 1.0),
                "{:+.1%}".format,
            ),
            Column("remarks", remark, words=True),
            Column(None, lambda row: not row.fault, key="feasible"),
            Column(None, lambda row: row.fault or None, key="reason"),
        ],
        rows=explanation.alternatives,
        title=f"{explanation.question}, now on {current}: the step with it elsewhere",
        key="elsewhere",
        keyed=True,
    )


def _prices_table(explanation: Explanation) -> Table[Loosened]:
    def cost(gain: float) -> str:
        """Format the seconds that a constraint costs, and their share of the step."""
        if gain <= 0:
            return "nothing"
        return f"{seconds_text(gain)} ({gain / explanation.searched:.1%})"

    return Table(
        columns=[
            Column("constraint", "constraint", key="constraint"),
            Column("step without it", "step_time", seconds_text, "step_time"),
            Column("costs", "gain", cost, "costs"),
            Column("remarks", "note", words=True),
        ],
        rows=explanation.prices or (),
        title=(
            f"what each constraint costs: {seconds_text(explanation.searched)} with all of them"
        ),
        key="constraints",
    )


def _path_data(explanation: Explanation) -> dict[str, Any]:
    names = [device.name for device in explanation.problem.cluster.devices]
    pieces = [
        {
            "kind": piece.kind,
            "begin": piece.begin,
            "end": piece.end,
            "op": explanation.problem.graph.names[piece.op],
            "device": names[piece.device],
            "target": names[piece.target],
        }
        for piece in explanation.pieces
    ]
    return {
        "shares": explanation.shares,
        "modules": dict(explanation.by_module()),
        "pieces": pieces,
    }


def describe_difference(
    difference: PlacementDifference,
    *,
    placements: Sequence[tuple[Problem, Placement, str]],
) -> Answer:
    """Describe what two placements of one problem do differently.

    Args:
        difference: The two placements.
        placements: The problem of each, the placement and its name, for a page and a trace.
    """

    @cache
    def get_steps() -> list[Timeline]:
        """Return the predicted steps for a page and a trace."""
        from gnnplace.simulation import simulate  # with numba, for views alone

        return [
            from_simulation(problem, simulate(problem, placement), name)
            for problem, placement, name in placements
        ]

    first = difference.before
    second = difference.after
    num_moved = sum(move.ops for move in difference.moves)
    change = "not comparable"
    if np.isfinite([first.step_time, second.step_time]).all() and first.step_time > 0:
        change = f"{second.step_time / first.step_time - 1.0:+.1%}"
    lines = [
        f"step {seconds_text(first.step_time)} -> {seconds_text(second.step_time)} "
        f"({change}, predicted); {num_moved} ops moved, {difference.same} stayed",
        f"transfers {first.transfers} -> {second.transfers}, {bytes_text(first.bytes)} -> "
        f"{bytes_text(second.bytes)} a step",
        *(f"the first is infeasible: {fault}" for fault in first.faults),
        *(f"the second is infeasible: {fault}" for fault in second.faults),
    ]
    return Answer(
        title="What moved",
        sections=[
            Lines(lines),
            move_table(difference),
            text_table(
                "devices",
                ["device", "computing", "then", "peak memory", "then"],
                _device_lines(difference),
            ),
        ],
        data={
            "before": _side_data(difference, first),
            "after": _side_data(difference, second),
            "same": difference.same,
        },
        page=lambda: make_page(placements[0][0], get_steps(), beside=True),
        steps=get_steps,
    )


def _device_lines(difference: PlacementDifference) -> list[list[str]]:
    """Format how long each device computes and its peak memory, before and after."""
    first, second = difference.before, difference.after
    lines = []
    for d, name in enumerate(difference.devices):
        busy = [seconds_text(side.busy[d]) for side in (first, second)]
        peak = [bytes_text(side.peak_memory[d]) for side in (first, second)]
        lines.append([name, *busy, *peak])
    return lines


def move_table(difference: PlacementDifference) -> Table[Move]:
    """Describe the modules that have work on another device, the most work first."""
    return Table(
        columns=[
            Column("module", "module", key="module", words=True),
            Column("from", "source", key="source"),
            Column("to", "target", key="target"),
            Column("ops", "ops", "{:,}".format, "ops"),
            Column("of work", "seconds", seconds_text, "seconds"),
        ],
        rows=difference.moves,
        title="what moved",
        key="moves",
        max_rows=MOST_MOVES,
    )


def _side_data(difference: PlacementDifference, side: Side) -> dict[str, Any]:
    return {
        "step_time": side.step_time,
        "transfers": side.transfers,
        "transfer_bytes": side.bytes,
        "peak_memory": dict(
            zip(difference.devices, side.peak_memory.tolist(), strict=True)
        ),
        "feasible": not side.faults,
    }


CLOSE = 0.02  # If the gap to the bound is less, nothing is left to gain
OPTIMAL = 1e-9


def advice_lines(advice: Advice, result: Result) -> Iterator[str]:
    """Yield the lines of an advice: used devices, idle ones, what to do next."""
    count = len(advice.used) + sum(len(idle.devices) for idle in advice.idle)
    comparison = "no one device can have all of it"
    if advice.single is not None and advice.speedup is not None:
        single = seconds_text(advice.single)
        comparison = f"{advice.speedup:.2f}x over one device ({single}), predicted"
    yield f"devices used: {len(advice.used)} of {count} ({', '.join(advice.used)}); {comparison}"
    for idle in advice.idle:
        yield f"idle: {names_text(idle.devices, 6)}: {idle.reason}"
    yield f"next: {_next(advice, result)}"


def _next(advice: Advice, result: Result) -> str:
    """Return what was simulated and is most worth doing, or what was tried in vain."""
    if advice.tries:
        best = advice.tries[0]
        return (
            f"{best.option}: about {best.speedup:.1f}x ({seconds_text(best.step_time)}, simulated "
            "without profiling; --microbatches auto profiles each number)"
        )
    best_move = None
    shortest = math.inf
    for idle in advice.idle:
        if idle.step_time is not None and idle.step_time < shortest:
            best_move = idle
            shortest = idle.step_time
    if best_move is not None:
        speedup = result.step_time / max(shortest, 1e-300)
        if speedup >= WORTH:
            return (
                f"--budget {max(10.0, 4 * result.seconds):.0f}: at least {speedup:.2f}x "
                f"({seconds_text(shortest)}, simulated: a part moved to "
                f"{best_move.devices[0]})"
            )
    if result.gap <= OPTIMAL:
        return "nothing: no placement of this problem is shorter (predicted)"
    if result.gap <= CLOSE:
        return f"nothing: no placement of this problem is more than {result.gap:.1%} shorter"
    tried = ", ".join(_list_trials(advice)) or "nothing else"
    finding = "nothing that was tried is 5 % shorter"
    if advice.alone_is_best and len(advice.used) + len(advice.idle) > 1:
        finding = "splitting gains under 5 % in what was tried"
    return (
        f"{finding} (simulated: {tried}); up to {result.gap:.0%} is open to the lower bound, and "
        "explain says what bounds it"
    )


def _list_trials(advice: Advice) -> Iterator[str]:
    """Yield what was simulated beside the answer."""
    if advice.single is not None:
        yield "one device"
    if advice.counts:
        yield f"micro-batches {', '.join(map(str, advice.counts))}"
    if any(idle.step_time is not None for idle in advice.idle):
        yield "parts moved to idle devices"
