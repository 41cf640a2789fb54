"""One step as a table of plain text: what `print(step.timing())` shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnplace.execution.result import OpTiming, StepTiming

LONGEST = 5  # ops that are listed by themselves
HEAD = ("device", "ops", "computing", "share", "first op", "last op", "sent", "received")


def step_table(step: StepTiming) -> str:
    """Seconds of a step by both clocks, a row for each device, and the longest ops."""
    devices = list(dict.fromkeys(op.device for op in step.ops))
    note = "; a worker was moved off its core: the wall clock is too long" * step.interrupted
    lines = [f"step: {_ms(step.wall)} wall, {_ms(step.virtual)} virtual{note}"]
    if devices:
        lines += aligned([HEAD, *(_row(step, device) for device in devices)])
    longest = sorted(step.ops, key=_length, reverse=True)[:LONGEST]
    if longest:
        lines.append("longest ops:")
        lines += aligned([("  " + op.op, op.device, _ms(_length(op))) for op in longest])
    return "\n".join(lines)


def aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows as lines whose columns stand under each other, the first to the left."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(step: StepTiming, device: str) -> tuple[str, ...]:
    ops = [op for op in step.ops if op.device == device]
    last = max(op.finish for op in ops)
    end = max(op.finish for op in step.ops)
    computing = sum(map(_length, ops))
    sent = sum(t.bytes for t in step.transfers if t.source == device)
    received = sum(t.bytes for t in step.transfers if t.target == device)
    share = f"{computing / end:.0%}" if end > 0 else "-"
    times = (_ms(min(op.start for op in ops)), _ms(last))
    return (device, str(len(ops)), _ms(computing), share, *times, _mb(sent), _mb(received))


def _length(op: OpTiming) -> float:
    """Seconds of an op by its worker's own clock where that is known."""
    return op.finish - op.start if op.busy is None else op.busy


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _mb(count: float) -> str:
    return f"{count / 1e6:.3g} MB"
