"""Pictures of standings: quality against seconds, and performance profiles.

Seconds are on a logarithmic axis. A placer's budgets make a line; one that ran with a single budget
is a dot. The shade is the 95 % interval of the geometric mean over the best known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnnplace.bench.profiles import Profile
from gnnplace.bench.standings import Standing
from gnnplace.bench.statistics import Interval
from gnnplace.report.pictures import Axis, Series, chart

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure

HIGHEST = 2.0  # ratios above it are left out of the picture
SHORTEST = 1e-4  # seconds that can be told on the axis
CLOSE = 1.05  # factor by which profiles are ordered and told


def quality_plot(found: Sequence[Standing], title: str) -> Figure:
    """Ratio over the best known against mean seconds, a line a placer."""
    lines: dict[str, list[tuple[Standing, Interval]]] = {}
    for standing in sorted(found, key=lambda s: s.seconds):
        if standing.ratio is not None and standing.ratio.mean <= HIGHEST:
            lines.setdefault(standing.placer, []).append((standing, standing.ratio))
    highest = max((ratio.high for line in lines.values() for _, ratio in line), default=1.1)
    limits = (1.0, max(1.05, min(HIGHEST, highest)))
    axes = (
        Axis("seconds of search (mean)", logarithmic=True),
        Axis("step time over best known", limits=limits),
    )
    return chart([_line(*entry) for entry in lines.items()], axes, title=title)


def _line(placer: str, line: Sequence[tuple[Standing, Interval]]) -> Series:
    return Series(
        placer,
        [max(standing.seconds, SHORTEST) for standing, _ in line],
        [ratio.mean for _, ratio in line],
        told=[f"{placer}, {standing.budget:g} s: {ratio.mean:.3f}" for standing, ratio in line],
        low=[ratio.low for _, ratio in line],
        high=[ratio.high for _, ratio in line],
    )


def profile_plot(found: Sequence[Profile], title: str) -> Figure:
    """Share of problems against the factor of the best known, of each largest budget."""
    shown = {profile.placer: profile for profile in sorted(found, key=lambda p: p.budget)}
    axes = (
        Axis("step time over best known, at most", limits=(1.0, HIGHEST), text="{:.1f}".format),
        Axis("share of problems", limits=(0.0, 1.0), text="{:.0%}".format),
    )
    best_first = sorted(shown.values(), key=lambda profile: -profile.share(CLOSE))
    return chart([_steps(profile) for profile in best_first], axes, title=title)


def _steps(profile: Profile) -> Series:
    """A line that rises where a problem is solved."""
    factors = sorted({1.0, HIGHEST, *(r for r in profile.ratios if 1.0 < r <= HIGHEST)})
    name = f"{profile.placer} {profile.budget:g} s"
    told = f"{profile.placer}, {profile.budget:g} s: {profile.share(CLOSE):.0%} within 5 %"
    shares = [profile.share(factor) for factor in factors]
    return Series(name, factors, shares, told=[told], joined="steps", dots=False)
