"""``gnnplace demo``: the whole road on one model, in a minute on two CPU cores."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import console, open_store, output_folder, say
from gnnplace.cli.numbers import from_args
from gnnplace.cli.options import (
    AUTO,
    capture_options,
)
from gnnplace.report import boxed, comparison, eager_line, summary_lines
from gnnplace.units import seconds_text

if TYPE_CHECKING:
    from gnnplace.report import Road


def run(args: Namespace) -> int:
    """Walk the road from capture to execution, print one table and write the report.

    Returns:
        0, or 1 if an execution computed something else than one device.
    """
    from gnnplace.report import Walking

    begin = time.perf_counter()
    folder = output_folder(args.output)
    gnnplace.check_budget(args.budget)
    auto = args.microbatches == AUTO
    walking = from_args(Walking, args, capture=capture_options(args), auto=auto)
    road = gnnplace.walk_road(walking, store=open_store(args.store), progress=say)
    _print(road)
    road.write(folder)
    took = time.perf_counter() - begin
    out = console()
    out.print(
        f"wrote {folder}/report.html and {folder}/trace.json (open it in ui.perfetto.dev)"
    )
    out.print(f"done in {took:.0f} s")
    return 0 if road.passed else 1


def _print(road: Road) -> None:
    from gnnplace.report import sizes_table

    out = console()
    problem = road.problem
    if road.chosen is not None:
        out.print(*boxed(sizes_table(road.sizes, road.chosen)))
    title = (
        f"{problem.name}: {len(road.program.ops)} captured ops, {problem.num_ops} after "
        f"grouping, on {road.walking.cluster}"
    )
    out.print(*boxed(comparison(road.rows, title)))
    if road.eager:
        eager = [eager_line(road.eager)]
    else:
        eager = []
    caveats = sorted({run.execution.caveat for run in road.runs.values()} - {""})
    caveat_lines = [f"not to be compared: {caveat}" for caveat in caveats]
    for line in [
        *summary_lines(road.rows),
        *_verdict(road),
        *_whole(road),
        *eager,
        *caveat_lines,
    ]:
        out.print(line, soft_wrap=True)


def _verdict(road: Road) -> list[str]:
    """Return a note if the best split, as run, is slower than one device."""
    times = {name: run.execution.step_time for name, run in road.runs.items()}
    if "best" not in times or times["best"] <= times.get("single", float("inf")):
        return []
    share = times["best"] / times["single"] - 1
    return [
        f"one device is best here, as run: the split that was predicted best is {share:.0%} slower"
    ]


def _whole(road: Road) -> list[str]:
    """Return a line about one device with the whole batch, which micro-batches have to beat."""
    if road.whole is None:
        return []
    seconds = road.whole.execution.step_time
    line = f"one device, whole batch: {seconds_text(seconds)}"
    if "best" in road.runs:
        gain = seconds / road.runs["best"].execution.step_time
        line += f"; best with {road.problem.microbatches} micro-batches is {gain:.2f}x as fast"
    return [f"{line} ({road.whole.verification.summary()})"]
