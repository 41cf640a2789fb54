"""Quality against seconds: a small self-contained SVG, seconds on a logarithmic axis.

And performance profiles: share of problems against the factor of the best known.

A placer's budgets make a line; one that ran with a single budget is a dot. The shade is the 95 %
interval of the geometric mean over the best known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from gnnplace.bench.profiles import Profile
from gnnplace.bench.standings import Standing

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 56, 190, 34, 44
HIGHEST = 2.0  # ratios above it are left out of the picture
# Okabe and Ito's colours, told apart by colour-blind readers; in turn where there are more placers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("none", "6 3", "2 2")  # a set of colours each


@dataclass(frozen=True)
class Frame:
    """What the axes show: log10 of seconds from ``left`` to ``right``, ratios from 1 to ``top``."""

    left: float
    right: float
    top: float

    def x(self, seconds: float) -> float:
        """Pixels from the left."""
        share = (log10(seconds) - self.left) / (self.right - self.left)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, ratio: float) -> float:
        """Pixels from above."""
        share = (min(ratio, self.top) - 1.0) / (self.top - 1.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def quality_plot(found: Sequence[Standing], title: str) -> str:
    """The plot as the text of an SVG file."""
    lines: dict[str, list[Standing]] = {}
    for standing in sorted(found, key=lambda s: s.seconds):
        if standing.ratio is not None and standing.ratio.mean <= HIGHEST:
            lines.setdefault(standing.placer, []).append(standing)
    frame = _frame([standing for line in lines.values() for standing in line])
    body = [_text(LEFT, 20, title, "title"), *_axes(frame)]
    for number, (placer, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        body += [_shade(frame, line, colour), _line(frame, line, colour)]
        body += [_dot(frame, standing, colour) for standing in line]
        body.append(_label(number, placer, colour))
    return _svg(body)


def profile_plot(found: Sequence[Profile], title: str) -> str:
    """Performance profiles as the text of an SVG file; of each placer at its largest budget."""
    shown = {profile.placer: profile for profile in sorted(found, key=lambda p: p.budget)}
    body = [_text(LEFT, 20, title, "title"), *_profile_axes()]
    for number, profile in enumerate(sorted(shown.values(), key=lambda p: -p.share(1.05))):
        colour = COLOURS[number % len(COLOURS)]
        body.append(_steps(profile, colour, DASHES[number // len(COLOURS) % len(DASHES)]))
        body.append(_label(number, f"{profile.placer} {profile.budget:g} s", colour))
    return _svg(body)


def _steps(profile: Profile, colour: str, dash: str) -> str:
    """A line that rises where a problem is solved; the factor's axis is linear to ``HIGHEST``."""
    points = [(1.0, profile.share(1.0))]
    for ratio in profile.ratios:
        if 1.0 < ratio <= HIGHEST:
            points += [(ratio, points[-1][1]), (ratio, profile.share(ratio))]
    points.append((HIGHEST, points[-1][1]))
    text = " ".join(f"{_factor_x(x):.1f},{_share_y(y):.1f}" for x, y in points)
    told = escape(f"{profile.placer}, {profile.budget:g} s: {profile.share(1.05):.0%} within 5 %")
    return (
        f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}"><title>{told}</title></polyline>'
    )


def _factor_x(factor: float) -> float:
    return LEFT + (factor - 1.0) / (HIGHEST - 1.0) * (WIDTH - LEFT - RIGHT)


def _share_y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _profile_axes() -> list[str]:
    bottom, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT} {TOP}V{bottom}H{end}" fill="none" stroke="#444"/>']
    for i in range(6):
        factor, share = 1.0 + (HIGHEST - 1.0) * i / 5, i / 5
        parts.append(f'<path d="M{_factor_x(factor):.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(_text(_factor_x(factor), bottom + 16, f"{factor:.1f}", "middle"))
        parts.append(f'<path d="M{LEFT} {_share_y(share):.1f}H{end}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, _share_y(share) + 4, f"{share:.0%}", "end"))
    middle = (LEFT + end) / 2
    parts.append(_text(middle, HEIGHT - 8, "step time over best known, at most", "middle"))
    parts.append(_sideways("share of problems"))
    return parts


def _sideways(text: str) -> str:
    return (
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(text)}</text>'
    )


def _svg(body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _frame(shown: Sequence[Standing]) -> Frame:
    seconds = [max(s.seconds, 1e-4) for s in shown] or [1.0]
    highest = max((s.ratio.high for s in shown if s.ratio), default=1.1)
    left, right = floor(log10(min(seconds))), ceil(log10(max(seconds)))
    return Frame(left, max(right, left + 1), max(1.05, min(HIGHEST, highest)))


def _axes(frame: Frame) -> list[str]:
    bottom, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT} {TOP}V{bottom}H{end}" fill="none" stroke="#444"/>']
    for power in range(round(frame.left), round(frame.right) + 1):
        x = frame.x(10.0**power)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(_text(x, bottom + 16, f"{10.0**power:g}", "middle"))
    for i in range(6):
        ratio = 1.0 + (frame.top - 1.0) * i / 5
        parts.append(f'<path d="M{LEFT} {frame.y(ratio):.1f}H{end}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, frame.y(ratio) + 4, f"{ratio:.2f}", "end"))
    middle = (LEFT + end) / 2
    parts.append(_text(middle, HEIGHT - 8, "seconds of search (mean)", "middle"))
    parts.append(_sideways("step time over best known"))
    return parts


def _text(x: float, y: float, text: str, kind: str) -> str:
    style = {"title": 'font-size="14"', "middle": 'text-anchor="middle"'}
    extra = style.get(kind, f'text-anchor="{kind}"')
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(text)}</text>'


def _point(frame: Frame, standing: Standing, ratio: float) -> str:
    return f"{frame.x(max(standing.seconds, 1e-4)):.1f},{frame.y(ratio):.1f}"


def _line(frame: Frame, line: Sequence[Standing], colour: str) -> str:
    points = " ".join(_point(frame, s, s.ratio.mean) for s in line if s.ratio)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _shade(frame: Frame, line: Sequence[Standing], colour: str) -> str:
    upper = [_point(frame, s, s.ratio.high) for s in line if s.ratio]
    lower = [_point(frame, s, s.ratio.low) for s in reversed(line) if s.ratio]
    return f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity="0.12"/>'


def _dot(frame: Frame, standing: Standing, colour: str) -> str:
    ratio = standing.ratio.mean if standing.ratio else 1.0
    x, y = _point(frame, standing, ratio).split(",")
    told = escape(f"{standing.placer}, {standing.budget:g} s: {ratio:.3f}")
    return f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"><title>{told}</title></circle>'


def _label(number: int, placer: str, colour: str) -> str:
    x, y = WIDTH - RIGHT + 14, TOP + 10 + 18 * number
    return f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>' + _text(
        x + 10, y, placer, "start"
    )
