"""Each launcher's fastest plan in one table, the fastest first, and what more devices buy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from gnnplace.launch import start_command
from gnnplace.plans import OWN, Plan, PlanFile, TradeEntry
from gnnplace.report.answer import Column, Lines, Section, Table, plain_lines
from gnnplace.report.rates import utilization
from gnnplace.units import bytes_text, seconds_text

CONVENTION = (
    "TFLOP/s a GPU and MFU count the model's products alone, forward and backward, nothing that is "
    "recomputed"
)
BAR = 24
NOTABLE_GAP = 1e-3
"""Part of a step that a launcher's plan may be above its bound without a line."""
LAYERS = re.compile(r"layers=([0-9+]+)")


def launcher_sections(plan: Plan) -> list[Section]:
    """Describe every launcher's fastest plan that stands beside a plan; none where nothing does.

    Args:
        plan: The fastest of all, with its alternatives.
    """
    alternatives = plan.file.alternatives
    if len(alternatives) < 2:
        return []
    # A reason begins with the launcher's name.
    reasons = [entry.reason for entry in alternatives.values() if entry.reason]
    lines = [*reasons, *_unfinished_lines(plan), CONVENTION]
    return [_launcher_table(plan), Lines([f"  {line}" for line in lines])]


def side_by_side_lines(plan: Plan) -> list[str]:
    """Format every launcher's fastest plan for a terminal."""
    return [x for section in launcher_sections(plan) for x in plain_lines(section)]


def _launcher_table(plan: Plan) -> Table[tuple[str, PlanFile]]:
    def get_flops(row: tuple[str, PlanFile]) -> float | None:
        """Return FLOPs a second of a device."""
        file = row[1]
        if file.flops is None or not file.step_time:
            return None
        return file.flops / file.step_time / len(file.memory)

    def get_interval(row: tuple[str, PlanFile]) -> str:
        """Return the times between which four of five steps are."""
        low, high = row[1].interval or [row[1].step_time or 0.0] * 2
        return f"{seconds_text(low)} to {seconds_text(high)}"

    return Table(
        columns=[
            Column("launcher", lambda row: row[0]),
            Column("step", lambda row: row[1].step_time, seconds_text),
            Column("in four of five", get_interval),
            Column(
                "tokens/s/GPU",
                lambda row: row[1].rate / len(row[1].memory),
                "{:,.0f}".format,
            ),
            Column("TFLOP/s", get_flops, lambda flops: f"{flops / 1e12:.0f}"),
            Column(
                "MFU",
                lambda row: utilization(row[1], row[1].step_time or 0.0),
                "{:.1%}".format,
            ),
            Column(
                "memory",
                lambda row: max(entry.all for entry in row[1].memory.values()),
                bytes_text,
            ),
            Column("fits", lambda row: row[1].fits, "{:.0%}".format),
            Column("plan", lambda row: short_words(row[1].words or ""), words=True),
        ],
        rows=[
            (name, entry.plan)
            for name, entry in plan.file.alternatives.items()
            if entry.plan is not None
        ],
        title="each launcher's fastest plan, at the prices of the framework that it starts:",
        boxed=False,
        below=True,
    )


def _unfinished_lines(plan: Plan) -> Iterator[str]:
    """Yield a line for each launcher whose search ended before its bound was reached."""
    for name, entry in plan.file.alternatives.items():
        file = entry.plan
        if file is None or file.lower_bound is None or not file.step_time:
            continue
        gap = 1 - file.lower_bound / file.step_time
        if gap >= NOTABLE_GAP:
            yield (
                f"{name}: the search ran out of time; a plan may be {gap:.1%} faster, and "
                "--budget SECONDS searches longer"
            )


def trade_table(file: PlanFile) -> Table[TradeEntry]:
    """Describe a launcher's plans that trade time for memory or devices.

    A bar is as long as the plan is fast, that of the fastest `BAR` characters.

    Args:
        file: Of the plan, with `trades`.
    """
    trades = file.trades
    fastest = min(trade.step_time for trade in trades)
    numbers = {trade.num_devices for trade in trades}
    if len(numbers) > 1:
        bought = "more devices"
    else:
        bought = "less and less memory"
    return Table(
        columns=[
            Column("devices", "num_devices", "{:,}".format),
            Column("memory", "memory", bytes_text),
            Column("step", "step_time", seconds_text),
            Column(
                "",
                lambda trade: "█" * max(1, round(BAR * fastest / trade.step_time)),
                words=True,
            ),
            Column("plan", lambda trade: short_words(trade.words), words=True),
        ],
        rows=trades,
        title=f"{file.launcher}'s fastest plans with {bought}:",
        boxed=False,
    )


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
