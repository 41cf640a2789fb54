"""``gnnplace demo``: the whole road on one model, in a minute on two CPU cores."""

from __future__ import annotations

import time

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    console,
    open_store,
    output_folder,
    print_sections,
    say,
)
from gnnplace.cli.numbers import from_args
from gnnplace.cli.options import (
    AUTO,
    capture_options,
)
from gnnplace.report import Walking, describe


def run(args: Namespace) -> int:
    """Walk the road from capture to execution, print one table and write the report.

    Returns:
        0, or 1 if an execution computed something else than one device.
    """
    begin = time.perf_counter()
    folder = output_folder(args.output)
    gnnplace.check_budget(args.budget)
    auto = args.microbatches == AUTO
    walking = from_args(Walking, args, capture=capture_options(args), auto=auto)
    road = gnnplace.walk_road(walking, store=open_store(args.store), progress=say)
    print_sections(describe(road))
    road.write(folder)
    took = time.perf_counter() - begin
    out = console()
    out.print(
        f"wrote {folder}/report.html and {folder}/trace.json (open it in ui.perfetto.dev)"
    )
    out.print(f"done in {took:.0f} s")
    return 0 if road.passed else 1
