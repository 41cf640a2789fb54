"""Numbers of micro-batches that were tried, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gnnplace.policy.sizes import Size
from gnnplace.report.units import seconds_text


def sizes_table(sizes: Sequence[Size], chosen: Size) -> Table:
    """What every number of micro-batches came to."""
    table = Table("micro-batches", "work on one device", "step, predicted", "remarks")
    for size in sizes:
        found = "-" if size.result is None else seconds_text(size.result.step_time)
        remark = size.note or ("chosen" if size is chosen else "")
        table.add_row(str(size.microbatches), seconds_text(size.work), found, remark)
    return table
