"""Time to converge against devices, a line for each kind of split; both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnnplace.plans.hybrid.advice import hours
from gnnplace.plans.hybrid.splits import Row
from gnnplace.report.pictures import Axis, Series, chart

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure

# Seconds that are round numbers of seconds, minutes, hours or days.
ROUND = [k * unit for unit in (1, 60) for k in (1, 2, 5, 10, 20, 30)]
ROUND += [k * 3600 for k in (1, 2, 5, 10, 24, 48, 120, 240, 480, 1200, 2400, 4800, 12000)]


def hybrid_plot(rows: Sequence[Row], *, title: str, note: str) -> Figure:
    """The picture.

    Args:
        rows: splits; those without an end-to-end time are left out.
        title: first line.
        note: second line: where the figures come from.
    """
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.devices, row.total_devices)):
        if math.isfinite(row.seconds):
            lines.setdefault(row.name, []).append(row)
    series = [_line(name, line) for name, line in lines.items()]
    seconds = [second for one in series for second in one.y]
    ticks = [tick for tick in ROUND if seconds and min(seconds) <= tick <= max(seconds)]
    counts = sorted({count for one in series for count in one.x})
    axes = (
        Axis("devices", logarithmic=True, ticks=counts),
        Axis("time to converge", logarithmic=True, ticks=ticks, text=hours),
    )
    return chart(series, axes, title=title, note=note)


def _line(name: str, line: Sequence[Row]) -> Series:
    return Series(
        name,
        [row.total_devices for row in line],
        [row.seconds for row in line],
        told=[
            f"{row.total_devices} devices, {row.groups} x {row.devices}: {hours(row.seconds)}"
            for row in line
        ],
    )
