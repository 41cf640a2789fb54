"""A picture of a frontier: every trade of time for memory, the knee marked.

The line is a staircase: between two strategies, the faster one is the best that fits. An axis is
logarithmic where its numbers span more than a factor of ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnplace.report.pictures import BLUE, Axis, Series, chart, mark

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure

WIDE = 10.0  # Largest by smallest number from which an axis is logarithmic.


@dataclass(frozen=True)
class Trade:
    """One strategy.

    Attributes:
        memory: along the x axis.
        time: along the y axis.
        told: what is said where the pointer rests on it.
    """

    memory: float
    time: float
    told: str


def frontier_plot(
    trades: Sequence[Trade], knee: int | None, *, title: str, note: str, axes: tuple[str, str]
) -> Figure:
    """The picture.

    Args:
        trades: strategies by time, ascending; memory falls.
        knee: index of the one to mark.
        title: first line.
        note: second line.
        axes: what memory and time are called, with their units.
    """
    x = _axis(axes[0], [trade.memory for trade in trades])
    y = _axis(axes[1], [trade.time for trade in trades])
    figure = chart(_series(trades, x), (x, y), title=title, note=note)
    if knee is not None:
        point = trades[knee]
        mark(figure, point.memory, point.time, f"knee: {point.told}", point.told)
    return figure


def _series(trades: Sequence[Trade], axis: Axis) -> list[Series]:
    """The staircase, which the fastest strategy carries on to the right, and a dot for each."""
    memory, time = [t.memory for t in reversed(trades)], [t.time for t in reversed(trades)]
    end = axis.limits[1] if axis.limits else memory[-1]
    stairs = Series("", [*memory, end], [*time, time[-1]], joined="steps", dots=False, colour=BLUE)
    told = [trade.told for trade in reversed(trades)]
    return [stairs, Series("", memory, time, told=told, joined="none", colour=BLUE)]


def _axis(name: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if low > 0 and high > WIDE * low:
        return Axis(name, logarithmic=True, limits=(low / 1.1, high * 1.1))
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return Axis(name, limits=(low - margin, high + margin))
