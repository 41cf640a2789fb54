"""Time to converge against devices: a small self-contained SVG, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.hybrid.advice import hours
from gnnplace.hybrid.splits import Row

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 84, 150, 58, 52
KINDS = (".svg", ".html")
# Okabe and Ito's colours, told apart by colour-blind readers; in turn where there are more lines.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Scale:
    """Logarithms from ``low`` to ``high`` along pixels from ``begin`` to ``end``."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low, self.high = min(values), max(values)
        if self.high <= self.low * 1.001:
            self.low, self.high = self.low / 1.5, self.high * 1.5
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        """Pixels."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, factors: Sequence[float]) -> list[float]:
        """Round numbers inside: powers of ten times ``factors``."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [f * 10.0**p for p in powers for f in factors]
        return [value for value in found if self.low <= value <= self.high]


def check_drawable(path: str | Path) -> None:
    """Raises InputError unless the file's name says that it is to be .svg or .html."""
    if Path(path).suffix.lower() not in KINDS:
        raise InputError(f"{path}: the plot is drawn as {' or '.join(KINDS)}")


def hybrid_svg(rows: Sequence[Row], *, title: str, note: str) -> str:
    """The picture as the text of an SVG file.

    Args:
        rows: splits; those without an end-to-end time are left out.
        title: first line.
        note: second line: where the figures come from.
    """
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.devices, row.total_devices)):
        if math.isfinite(row.seconds):
            lines.setdefault(row.name, []).append(row)
    body = [_text(LEFT, 22, title, 'font-size="15"'), _text(LEFT, 42, note, 'fill="#555"')]
    shown = [row for line in lines.values() for row in line]
    if shown:
        x = Scale([row.total_devices for row in shown], LEFT, WIDTH - RIGHT)
        y = Scale([row.seconds for row in shown], HEIGHT - BOTTOM, TOP)
        body += _axes(x, y, sorted({row.total_devices for row in shown}))
        for number, (name, line) in enumerate(lines.items()):
            body += _line(x, y, line, COLOURS[number % len(COLOURS)])
            body += _legend(number, name, COLOURS[number % len(COLOURS)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def write_hybrid(path: str | Path, svg: str, title: str) -> None:
    """Writes NAME.svg, or NAME.html with the picture in it."""
    check_drawable(path)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<body style="max-width:60rem;margin:2rem auto">\n{svg}</body></html>\n'
    )
    write_text(path, page if Path(path).suffix.lower() == ".html" else svg)


def _axes(x: Scale, y: Scale, counts: Sequence[int]) -> list[str]:
    bottom, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for count in counts:
        parts.append(f'<path d="M{x.at(count):.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(_text(x.at(count), bottom + 16, str(count), 'text-anchor="middle"'))
    ticks = y.ticks((1, 2, 5)) or [y.low, y.high]
    for value in ticks:
        parts.append(f'<path d="M{LEFT} {y.at(value):.1f}H{end}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y.at(value) + 4, hours(value), 'text-anchor="end"'))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{end}" fill="none" stroke="#444"/>')
    parts.append(_text((LEFT + end) / 2, HEIGHT - 14, "devices", 'text-anchor="middle"'))
    return parts


def _line(x: Scale, y: Scale, line: Sequence[Row], colour: str) -> list[str]:
    points = [(x.at(row.total_devices), y.at(row.seconds)) for row in line]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for row, (a, b) in zip(line, points, strict=True):
        told = f"{row.total_devices} devices, {row.groups} x {row.devices}: {hours(row.seconds)}"
        dot = f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}">'
        parts.append(f"{dot}<title>{escape(told)}</title></circle>")
    return parts


def _legend(number: int, name: str, colour: str) -> list[str]:
    x, y = WIDTH - RIGHT + 14, TOP + 12 + 18 * number
    return [
        f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>',
        _text(x + 10, y, name, 'text-anchor="start"'),
    ]


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
