"""Each launcher's fastest plan in one table, the fastest first."""

from __future__ import annotations

import itertools
import re

from gnnplace.launch import start_command
from gnnplace.plans import OWN, Plan, PlanFile
from gnnplace.report.rates import utilization
from gnnplace.units import bytes_text, seconds_text

HEAD = (
    "launcher",
    "step",
    "in four of five",
    "tokens/s/GPU",
    "TFLOP/s",
    "MFU",
    "memory",
    "fits",
)
CONVENTION = (
    "TFLOP/s a GPU and MFU count the model's products alone, forward and backward, nothing that is "
    "recomputed"
)
BAR = 24
LAYERS = re.compile(r"layers=([0-9+]+)")


def side_by_side_lines(plan: Plan) -> list[str]:
    """Format every launcher's fastest plan that stands beside a plan; none where nothing does.

    Args:
        plan: The fastest of all, with its alternatives.
    """
    alternatives = plan.file.alternatives
    if len(alternatives) < 2:
        return []
    rows: list[tuple[str, ...]] = [HEAD]
    words = [""]
    for name, entry in alternatives.items():
        if entry.plan is not None:
            rows.append((name, *_figures(entry.plan)))
            words.append(short_words(entry.plan.words or ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "each launcher's fastest plan, at the prices of the framework that it starts:"
    ]
    for row, text in zip(rows, words, strict=True):
        cells = [f"{row[0]:{widths[0]}}"]
        for cell, width in zip(row[1:], widths[1:], strict=True):
            cells.append(f"{cell:>{width}}")
        lines.append("  " + "  ".join(cells))
        lines += [f"  {'':{widths[0]}}  {text}"] if text else []
    lines += [
        f"  {entry.reason}" for entry in alternatives.values() if entry.reason
    ]  # a reason begins with the launcher's name
    return [*lines, f"  {CONVENTION}"]


def _figures(file: PlanFile) -> tuple[str, ...]:
    """Return the cells of a launcher's row behind its name."""
    seconds = file.step_time or 0.0
    low, high = file.interval or [seconds, seconds]
    devices = len(file.memory)
    share = utilization(file, seconds)
    if file.flops is None:
        flops = ""
    else:
        flops = f"{file.flops / seconds / devices / 1e12:.0f}"
    peak = max(entry.all for entry in file.memory.values())
    return (
        seconds_text(seconds),
        f"{seconds_text(low)} to {seconds_text(high)}",
        f"{file.rate / devices:,.0f}",
        flops,
        "" if share is None else f"{share:.1%}",
        bytes_text(peak),
        "" if file.fits is None else f"{file.fits:.0%}",
    )


def trade_lines(plan: Plan) -> list[str]:
    """Format a launcher's plans that trade time for memory or devices; none where there are none.

    A bar is as long as the plan is fast, that of the fastest `BAR` characters.

    Args:
        plan: With `trades`.
    """
    trades = plan.file.trades
    if not trades:
        return []
    fastest = min(trade.step_time for trade in trades)
    numbers = {trade.num_devices for trade in trades}
    if len(numbers) > 1:
        bought = "more devices"
    else:
        bought = "less and less memory"
    lines = [f"{plan.file.launcher}'s fastest plans with {bought}:"]
    for trade in trades:
        bar = "█" * max(1, round(BAR * fastest / trade.step_time))
        lines.append(
            f"  {trade.num_devices:6,d} devices  {bytes_text(trade.memory):>8}  "
            f"{seconds_text(trade.step_time):>8}  {bar:{BAR}}  {short_words(trade.words)}"
        )
    return lines


def short_words(words: str) -> str:
    """Return a plan in words with equal stages as 14x2, without what goes without saying."""
    words = re.sub(r",batch=[0-9]+", "", words)
    if "tp=" not in words:  # one shard has all tokens
        words = words.replace("sp=on,", "")
    return LAYERS.sub(lambda match: f"layers={_runs(match[1])}", words)


def _runs(layers: str) -> str:
    """Return 2+2+2+1 as 3x2+1."""
    runs = []
    for count, stages in itertools.groupby(layers.split("+")):
        number = len(list(stages))
        runs.append(count if number == 1 else f"{number}x{count}")
    return "+".join(runs)


def next_line(plan: Plan, path: str | None) -> str:
    """Format the command that takes a plan to its launcher.

    Args:
        plan: Found for a launcher.
        path: Of its file; None where none was written.
    """
    launcher = plan.file.launcher
    if path is None:
        return "  next: add -o plan.json, then gnnplace convert plan.json --to LAUNCHER -o FILE"
    name = "LAUNCHER" if launcher == OWN else launcher
    if not path.endswith(".json"):
        return f"  written to {path}; start: {start_command(launcher or '', path)}"
    return f"  written to {path}; next: gnnplace convert {path} --to {name} -o FILE"
