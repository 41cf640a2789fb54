"""The fidelity report: one self-contained page with a scatter plot and tables, no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

SIZE, MARGIN = 460, 60
BEFORE, AFTER = "#9aa5b1", "#0b6e99"
STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1f2933}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;"
    "text-align:right;border-bottom:1px solid #e4e7eb}"
    "td:first-child,th:first-child{text-align:left}"
    "svg text{font:12px system-ui,sans-serif;fill:#52606d}"
)


@dataclass(frozen=True)
class Point:
    """One placement: predicted and measured seconds, and who made it."""

    name: str
    predicted: float
    measured: float
    series: str = "predicted"


def scatter(points: Sequence[Point], title: str) -> str:
    """Predicted against measured step times as SVG; on the diagonal they agree.

    Args:
        points: Of one or two series: "predicted" grey, "calibrated" blue.
        title: Said to who cannot see it.
    """
    largest = max(max(p.predicted, p.measured) for p in points) * 1.05
    step = _tick(largest)
    ticks = [k * step for k in range(ceil(largest / step) + 1)]
    scale = SIZE / ticks[-1]

    def at(value: float) -> float:
        return round(value * scale, 1)

    low, high = MARGIN, MARGIN + SIZE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE + 2 * MARGIN}" '
        f'height="{SIZE + 2 * MARGIN}" role="img"><title>{escape(title)}</title>',
        f'<line x1="{low}" y1="{high}" x2="{high}" y2="{low}" stroke="#cbd2d9"/>',
    ]
    for tick in ticks:
        x, y, label = low + at(tick), high - at(tick), f"{1e3 * tick:g}"
        parts += [
            f'<text x="{x}" y="{high + 18}" text-anchor="middle">{label}</text>',
            f'<text x="{low - 8}" y="{y + 4}" text-anchor="end">{label}</text>',
            f'<path d="M{x} {high}v5M{low} {y}h-5" stroke="#9aa5b1"/>',
        ]
    parts.append(f'<path d="M{low} {low}V{high}H{high}" fill="none" stroke="#9aa5b1"/>')
    for p in points:
        fill = AFTER if p.series == "calibrated" else BEFORE
        about = f"{p.name}, {p.series}: {1e3 * p.predicted:.4g} ms, measured {1e3 * p.measured:.4g}"
        parts.append(
            f'<circle cx="{low + at(p.measured)}" cy="{high - at(p.predicted)}" r="4" '
            f'fill="{fill}" fill-opacity="0.8"><title>{escape(about)} ms</title></circle>'
        )
    parts += [
        f'<text x="{(low + high) / 2}" y="{high + 42}" text-anchor="middle">measured, ms</text>',
        f'<text x="18" y="{(low + high) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 18 {(low + high) / 2})">predicted, ms</text></svg>',
    ]
    return "".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML."""
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page.

    Args:
        title: Its heading.
        parts: HTML, one after the other.
    """
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def paragraph(text: str) -> str:
    """A paragraph as HTML."""
    return f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    """A section's heading as HTML."""
    return f"<h2>{escape(text)}</h2>"


def _tick(largest: float) -> float:
    """A round step that gives four to ten ticks."""
    power = 10.0 ** floor(log10(largest))
    return next(power * f for f in (0.1, 0.2, 0.5, 1.0) if largest / (power * f) <= 10)
