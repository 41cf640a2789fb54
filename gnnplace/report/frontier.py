"""A picture of a frontier: every trade of time for memory, the knee marked; SVG, or HTML around it.

The line is a staircase: between two strategies, the faster one is the best that fits. An axis is
logarithmic where its numbers span more than a factor of ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from gnnplace.errors import InputError
from gnnplace.files import write_text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 76, 28, 52, 52
WIDE = 10.0  # Largest by smallest number from which an axis is logarithmic.
KINDS = (".svg", ".html")
LINE, MARK = "#0072B2", "#D55E00"  # Okabe and Ito's blue and vermilion.


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


@dataclass(frozen=True)
class Axis:
    """Numbers from ``low`` to ``high`` along pixels from ``begin`` to ``end``."""

    low: float
    high: float
    begin: float
    end: float

    @property
    def logarithmic(self) -> bool:
        """Whether the numbers span more than ``WIDE``."""
        return self.low > 0 and self.high > WIDE * self.low

    def at(self, value: float) -> float:
        """Pixels."""
        share = (value - self.low) / (self.high - self.low)
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round numbers inside."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [k * 10.0**power for power in powers for k in (1, 2, 5)]
        else:
            step = _round_step((self.high - self.low) / 5)
            first = math.ceil(self.low / step)
            found = [step * (first + k) for k in range(12)]
        return [value for value in found if self.low <= value <= self.high]


def frontier_svg(
    trades: Sequence[Trade], knee: int | None, *, title: str, note: str, axes: tuple[str, str]
) -> str:
    """The picture as the text of an SVG file.

    Args:
        trades: strategies by time, ascending; memory falls.
        knee: index of the one to mark.
        title: first line.
        note: second line.
        axes: what memory and time are called, with their units.
    """
    x = _axis([trade.memory for trade in trades], LEFT, WIDTH - RIGHT)
    y = _axis([trade.time for trade in trades], HEIGHT - BOTTOM, TOP)
    body = [_text(LEFT, 20, title, 'font-size="15"'), _text(LEFT, 38, note, 'fill="#555"')]
    body += [*_grid(x, y), *_names(axes), _staircase(x, y, trades)]
    body += [_dot(x, y, trade, LINE, 3) for trade in trades]
    if knee is not None:
        body += _knee(x, y, trades[knee])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def check_drawable(path: str | Path) -> None:
    """Raises InputError unless the file's name says that it is to be .svg or .html."""
    if Path(path).suffix.lower() not in KINDS:
        raise InputError(f"{path}: a frontier is drawn as {' or '.join(KINDS)}")


def write_frontier(path: str | Path, svg: str, title: str) -> None:
    """Writes NAME.svg, or NAME.html with the picture in it.

    Raises:
        InputError: another kind of file, or one that can't be written.
    """
    check_drawable(path)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<body style="max-width:60rem;margin:2rem auto">\n{svg}</body></html>\n'
    )
    write_text(path, page if Path(path).suffix.lower() == ".html" else svg)


def _axis(values: Sequence[float], begin: float, end: float) -> Axis:
    low, high = min(values), max(values)
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    if low > 0 and high > WIDE * low:
        return Axis(low / 1.1, high * 1.1, begin, end)
    return Axis(low - margin, high + margin, begin, end)


def _round_step(step: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below ``step``."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= step * (1 - 1e-9))


def _grid(x: Axis, y: Axis) -> list[str]:
    bottom, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in x.ticks():
        parts.append(f'<path d="M{x.at(value):.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(_text(x.at(value), bottom + 16, f"{value:g}", 'text-anchor="middle"'))
    for value in y.ticks():
        parts.append(f'<path d="M{LEFT} {y.at(value):.1f}H{end}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y.at(value) + 4, f"{value:g}", 'text-anchor="end"'))
    return [*parts, f'<path d="M{LEFT} {TOP}V{bottom}H{end}" fill="none" stroke="#444"/>']


def _names(axes: tuple[str, str]) -> list[str]:
    turned = f'transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)"'
    return [
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axes[0], 'text-anchor="middle"'),
        f'<text {turned} text-anchor="middle">{escape(axes[1])}</text>',
    ]


def _staircase(x: Axis, y: Axis, trades: Sequence[Trade]) -> str:
    """From each strategy to more memory at the same time, up to the next faster one's."""
    path = f"M{x.end:.1f} {y.at(trades[0].time):.1f}"
    path += "".join(f"V{y.at(trade.time):.1f}H{x.at(trade.memory):.1f}" for trade in trades)
    return f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'


def _dot(x: Axis, y: Axis, trade: Trade, colour: str, radius: float) -> str:
    place = f'cx="{x.at(trade.memory):.1f}" cy="{y.at(trade.time):.1f}"'
    told = f"<title>{escape(trade.told)}</title>"
    return f'<circle {place} r="{radius}" fill="{colour}">{told}</circle>'


def _knee(x: Axis, y: Axis, trade: Trade) -> list[str]:
    left = x.at(trade.memory) > (x.begin + x.end) / 2
    shift, anchor = (-10, "end") if left else (10, "start")
    place = (x.at(trade.memory) + shift, y.at(trade.time) - 10)
    text = _text(*place, f"knee: {trade.told}", f'text-anchor="{anchor}" fill="{MARK}"')
    return [_dot(x, y, trade, MARK, 6), text]


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
