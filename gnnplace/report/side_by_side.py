"""Each launcher's fastest plan in one table, the fastest first, and what more devices buy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from gnnplace.launch import make_launch_plan, start_command
from gnnplace.plans import OWN, Plan, PlanFile, TradeEntry
from gnnplace.report.answer import (
    Column,
    Lines,
    Section,
    Table,
    TextTable,
    plain_lines,
    text_table,
)
from gnnplace.report.rates import utilization
from gnnplace.units import bytes_text, seconds_text

HEADINGS = (
    "launcher",
    "step",
    "in four of five",
    "tokens/s/GPU",
    "TFLOP/s",
    "MFU",
    "memory",
    "fits",
    "plan",
)
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
    lines = [*_reasons(plan.file), *_list_unfinished(plan), CONVENTION]
    return [_launcher_table(plan.file), Lines([f"  {line}" for line in lines])]


def _reasons(file: PlanFile) -> list[str]:
    """Format why launchers have no plan, those with the same reason in one line."""
    names_by_reason: dict[str, list[str]] = {}
    for name, entry in file.alternatives.items():
        if entry.reason is not None:
            # A reason begins with the launcher's name.
            reason = entry.reason.removeprefix(f"{name}: ")
            names_by_reason.setdefault(reason, []).append(name)
    return [
        f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items()
    ]


def side_by_side_lines(plan: Plan) -> list[str]:
    """Format every launcher's fastest plan for a terminal."""
    return [x for section in launcher_sections(plan) for x in plain_lines(section)]


def _launcher_table(file: PlanFile) -> TextTable:
    """Describe each launcher's fastest plan; a terminal has its words below its figures."""
    rows = [
        [name, *_figures(entry.plan), _format_plan_words(entry.plan)]
        for name, entry in file.alternatives.items()
        if entry.plan is not None
    ]
    title = (
        "each launcher's fastest plan, at the prices of the framework that it starts:"
    )
    headings = [heading.replace("tokens", file.unit) for heading in HEADINGS]
    table = text_table(title, headings, rows, words=headings[-1:])
    return replace(table, boxed=False, below=True)


def _format_plan_words(file: PlanFile) -> str:
    """Return a plan in few words; that of our own runner for a capture as its meshes."""
    if file.words is not None:
        return short_words(file.words)
    if file.launcher is None:
        return Plan(file).shape
    return make_launch_plan(Plan(file))[0].words


def _figures(file: PlanFile) -> list[str]:
    """Return the cells of a launcher's row between its name and the plan's words."""
    seconds = file.step_time or 0.0
    low, high = file.interval or [seconds, seconds]
    devices = len(file.memory)
    share = utilization(file, seconds)
    flops = "-"
    if file.flops is not None:
        flops = f"{file.flops / seconds / devices / 1e12:.0f}"
    peak = max(entry.all for entry in file.memory.values())
    return [
        seconds_text(seconds),
        f"{seconds_text(low)} to {seconds_text(high)}",
        f"{file.rate / devices:,.0f}",
        flops,
        "-" if share is None else f"{share:.1%}",
        bytes_text(peak),
        "-" if file.fits is None else f"{file.fits:.0%}",
    ]


def _list_unfinished(plan: Plan) -> Iterator[str]:
    """Yield a line for each launcher whose search ended before its bound was reached."""
    for name, entry in plan.file.alternatives.items():
        file = entry.plan
        if file is None or file.lower_bound is None or not file.step_time:
            continue
        if file.words is None:  # the bound of a captured model is never reached
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
        file: The plan's file, with `trades`.
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
        path: The path of the plan's file, or None if none was written.
    """
    launcher = plan.file.launcher
    if path is None:
        return "  next: add -o plan.json, then gnnplace convert plan.json --to LAUNCHER -o FILE"
    name = "LAUNCHER" if launcher in (None, OWN) else launcher
    if not path.endswith(".json"):
        return f"  written to {path}; start: {start_command(launcher or '', path)}"
    return f"  written to {path}; next: gnnplace convert {path} --to {name} -o FILE"
