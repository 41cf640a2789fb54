"""Explanations and differences of placements: tables for people, plain data for programs.

What ``place`` says of its answer: devices used and idle, one device beside, what to try next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table

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
from gnnplace.units import bytes_text, names_text, seconds_text

MOST_ROWS = 12
IDLE = ("other_device", "transfer", "messages", "nothing_left")
HEADINGS = (
    "waits for another device",
    "for a transfer",
    "messages",
    "nothing left to do",
)


def explanation_parts(explanation: Explanation) -> Iterator[str | Table]:
    """Format an explanation as lines and tables."""
    simulation = explanation.simulation
    bounds = explanation.bounds
    if bounds.best > 0:
        gap = simulation.step_time / bounds.best - 1.0
    else:
        gap = 0.0
    yield (
        f"{explanation.problem.name}: predicted step {seconds_text(simulation.step_time)}; no "
        f"placement can be below {seconds_text(bounds.best)} (by {bounds.binding}), so it is "
        f"within {gap:.1%} of the best"
    )
    shares = ", ".join(
        f"{kind} {share:.0%}" for kind, share in explanation.shares.items() if share
    )
    ops = sum(piece.kind == COMPUTING for piece in explanation.pieces)
    yield f"critical path: {ops} ops; {shares}"
    yield _path_table(explanation)
    yield _device_table(explanation)
    if explanation.question:
        yield _alternatives_table(explanation)
    if explanation.prices is not None:
        yield _prices_table(explanation)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for k, heading in enumerate(headings):
        table.add_column(heading, justify="left" if k == 0 else "right")
    return table


def _path_table(explanation: Explanation) -> Table:
    table = _table(
        "critical path by module", "module", "seconds", "share", *PIECE_KINDS
    )
    rows = explanation.by_module()
    total = explanation.simulation.step_time
    if len(rows) > MOST_ROWS:
        remaining = {
            k: sum(seconds[k] for _, seconds in rows[MOST_ROWS:]) for k in PIECE_KINDS
        }
        rows = [*rows[:MOST_ROWS], (f"{len(rows) - MOST_ROWS} others", remaining)]
    for name, seconds in rows:
        seconds_in_all = sum(seconds.values())
        cells = [
            seconds_text(seconds[kind]) if seconds[kind] else "" for kind in PIECE_KINDS
        ]
        table.add_row(
            name, seconds_text(seconds_in_all), f"{seconds_in_all / total:.1%}", *cells
        )
    return table


def _device_table(explanation: Explanation) -> Table:
    table = _table("each device's step", "device", "computing", *HEADINGS)
    total = max(explanation.simulation.step_time, 1e-300)
    for device, spent in zip(
        explanation.problem.cluster.devices, explanation.devices, strict=True
    ):
        idle = [getattr(spent, name) / total for name in IDLE]
        cells = [f"{share:.1%}" if share > 0 else "" for share in idle]
        table.add_row(device.name, f"{spent.computing / total:.1%}", *cells)
    return table


def _alternatives_table(explanation: Explanation) -> Table:
    devices = ", ".join(explanation.current_devices)
    title = f"{explanation.question}, now on {devices}: the step with it elsewhere"
    table = _table(title, "device", "ops moved", "step", "change", "remarks")
    for choice in explanation.alternatives:
        name = explanation.problem.cluster.devices[choice.device].name
        if not np.isfinite(choice.step_time):
            table.add_row(name, str(choice.num_moved), "-", "-", choice.fault)
            continue
        change = choice.step_time / explanation.simulation.step_time - 1.0
        unmoved = "" if choice.num_moved else "as it is"
        if choice.fault:
            remark = f"cannot be: {choice.fault}"
        else:
            remark = unmoved
        table.add_row(
            name,
            str(choice.num_moved),
            seconds_text(choice.step_time),
            f"{change:+.1%}",
            remark,
        )
    return table


def _prices_table(explanation: Explanation) -> Table:
    table = _table(
        f"what each constraint costs: {seconds_text(explanation.searched)} with all of them",
        "constraint",
        "step without it",
        "costs",
        "remarks",
    )
    for price in explanation.prices or ():
        share = price.gain / explanation.searched
        if price.gain > 0:
            cost = f"{seconds_text(price.gain)} ({share:.1%})"
        else:
            cost = "nothing"
        table.add_row(price.constraint, seconds_text(price.step_time), cost, price.note)
    return table


def explanation_data(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data, in seconds and bytes."""
    names = [device.name for device in explanation.problem.cluster.devices]
    devices = {}
    for name, spent in zip(names, explanation.devices, strict=True):
        idle = {cause: getattr(spent, cause) for cause in IDLE}
        devices[name] = {"computing": spent.computing, **idle}
    data: dict[str, Any] = {
        "step_time": explanation.simulation.step_time,
        "lower_bound": explanation.bounds.best,
        "bound_by": explanation.bounds.binding,
        "critical_path": _path_data(explanation, names),
        "devices": devices,
    }
    if explanation.question:
        data["asked"] = explanation.question
        data["now"] = list(explanation.current_devices)
        data["elsewhere"] = {
            names[alternative.device]: {
                "step_time": _finite(alternative.step_time),
                "ops_moved": alternative.num_moved,
                "feasible": not alternative.fault,
                "reason": alternative.fault or None,
            }
            for alternative in explanation.alternatives
        }
    if explanation.prices is not None:
        data["constraints"] = [
            {
                "constraint": price.constraint,
                "step_time": _finite(price.step_time),
                "costs": _finite(price.gain),
            }
            for price in explanation.prices
        ]
    return data


def _path_data(explanation: Explanation, device_names: list[str]) -> dict[str, Any]:
    pieces = [
        {
            "kind": piece.kind,
            "begin": piece.begin,
            "end": piece.end,
            "op": explanation.problem.graph.names[piece.op],
            "device": device_names[piece.device],
            "target": device_names[piece.target],
        }
        for piece in explanation.pieces
    ]
    return {
        "shares": explanation.shares,
        "modules": dict(explanation.by_module()),
        "pieces": pieces,
    }


def _finite(value: float) -> float | None:
    if np.isfinite(value):
        return value
    return None


def difference_parts(difference: PlacementDifference) -> Iterator[str | Table]:
    """Format a difference as lines and tables."""
    first = difference.before
    second = difference.after
    num_moved = sum(move.ops for move in difference.moves)
    yield (
        f"step {seconds_text(first.step_time)} -> {seconds_text(second.step_time)} "
        f"({_change(first.step_time, second.step_time)}, predicted); {num_moved} ops moved, "
        f"{difference.same} stayed"
    )
    yield (
        f"transfers {first.transfers} -> {second.transfers}, {bytes_text(first.bytes)} -> "
        f"{bytes_text(second.bytes)} a step"
    )
    for side, name in ((first, "first"), (second, "second")):
        for fault in side.faults:
            yield f"the {name} is infeasible: {fault}"
    if difference.moves:
        table = _table("what moved", "module", "from", "to", "ops", "of work")
        for move in difference.moves[: 2 * MOST_ROWS]:
            ends = move.source, move.target, str(move.ops), seconds_text(move.seconds)
            table.add_row(move.module, *ends)
        yield table
        if len(difference.moves) > 2 * MOST_ROWS:
            yield f"and {len(difference.moves) - 2 * MOST_ROWS} smaller moves"
    table = _table("devices", "device", "computing", "then", "peak memory", "then")
    for d, name in enumerate(difference.devices):
        busy = seconds_text(first.busy[d]), seconds_text(second.busy[d])
        peak = bytes_text(first.peak_memory[d]), bytes_text(second.peak_memory[d])
        table.add_row(name, *busy, *peak)
    yield table


def _change(before: float, after: float) -> str:
    comparable = np.isfinite(before) and np.isfinite(after) and before > 0
    if comparable:
        return f"{after / before - 1.0:+.1%}"
    return "not comparable"


def difference_data(difference: PlacementDifference) -> dict[str, Any]:
    """Return a difference as plain data, in seconds and bytes."""
    return {
        "before": _side_data(difference, difference.before),
        "after": _side_data(difference, difference.after),
        "same": difference.same,
        "moves": [move.__dict__ for move in difference.moves],
    }


def _side_data(difference: PlacementDifference, side: Side) -> dict[str, Any]:
    return {
        "step_time": _finite(side.step_time),
        "transfers": side.transfers,
        "transfer_bytes": side.bytes,
        "peak_memory": dict(
            zip(difference.devices, side.peak_memory.tolist(), strict=True)
        ),
        "feasible": not side.faults,
    }


CLOSE = 0.02  # of the bound: nothing is left to gain
OPTIMAL = 1e-9


def advice_lines(advice: Advice, result: Result) -> Iterator[str]:
    """Lines about a result."""
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
