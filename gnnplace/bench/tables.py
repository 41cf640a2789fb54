"""What rows say, as tables: standings, pairs, profiles, families, clusters, fidelity, failures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from gnnplace.bench.best_known import BestKnown, ProblemId
from gnnplace.bench.breakdown import LABELS, breakdown
from gnnplace.bench.grid import Grid, interval_text
from gnnplace.bench.paired import pairings
from gnnplace.bench.profiles import FACTORS, performance_profiles
from gnnplace.bench.standings import Entrant, Standing, standings
from gnnplace.measurements.agreement import FEWEST, agreement

Row = Mapping[str, Any]
Best = Mapping[ProblemId, BestKnown]
LONGEST = 80  # letters of a reason


def tables(rows: Sequence[Row], best: Best, rival: str, heading: str) -> list[Grid]:
    """All tables that the rows have something to say in; standings are the first.

    Args:
        rows: the rows of one suite.
        best: best known step times; at least those of the rows.
        rival: who others are compared with.
        heading: title of the standings.
    """
    grids = [
        standings_grid(standings(rows, best, rival), rival, heading),
        _pairing_grid(rows, rival),
        _profile_grid(rows, best),
        *(_breakdown_grid(rows, best, label) for label in LABELS),
        _fidelity_grid(rows),
        _failure_grid(rows),
    ]
    return [grid for grid in grids if grid.lines]


def standings_grid(found: Sequence[Standing], rival: str, heading: str) -> Grid:
    """Everybody against the best known and the portfolio."""
    headings: tuple[str, ...] = ("placer", "budget", "over best known", "gap closed", "pooled")
    headings += (f"won/lost/tied ({rival})", "infeasible", "seconds")
    return Grid(heading, headings, [_standing_line(standing) for standing in found])


def _standing_line(standing: Standing) -> list[str]:
    versus = (standing.wins, standing.losses, standing.ties)
    return [
        standing.placer,
        f"{standing.budget:g} s",
        interval_text(standing.ratio),
        interval_text(standing.closed, ".0%"),
        "-" if isnan(standing.pooled) else f"{standing.pooled:.0%}",
        "/".join(map(str, versus)) if any(versus) else "-",
        f"{standing.infeasible} of {standing.rows}",
        f"{standing.seconds:.3g}",
    ]


def _pairing_grid(rows: Sequence[Row], rival: str) -> Grid:
    title = f"Paired: step time over {rival}'s at the same budget"
    headings = ("placer", "budget", "ratio", "problems", "only one solved", "step times are")
    lines = [
        [
            found.placer,
            f"{found.budget:g} s",
            interval_text(found.ratio),
            str(found.ratio.count),
            str(found.unpaired),
            found.verdict,
        ]
        for found in pairings(rows, rival)
    ]
    return Grid(title, headings, lines)


def _profile_grid(rows: Sequence[Row], best: Best) -> Grid:
    headings = ("placer", "budget", *(f"{factor:g}" for factor in FACTORS), "ever")
    lines = [
        [
            found.placer,
            f"{found.budget:g} s",
            *(f"{found.share(factor):.0%}" for factor in FACTORS),
            f"{len(found.ratios) / found.tried:.0%}",
        ]
        for found in performance_profiles(rows, best)
    ]
    return Grid("Share of problems within a factor of the best known", headings, lines)


def _breakdown_grid(rows: Sequence[Row], best: Best, label: str) -> Grid:
    found = breakdown(rows, best, label)
    entrants = {who: None for means in found.values() for who in means}
    lines = [
        [_entrant(who), *(interval_text(means.get(who)) for means in found.values())]
        for who in sorted(entrants, key=lambda who: (who[1], who[0]))
    ]
    return Grid(f"Over best known, by {label}", ("placer", *found), lines)


def _entrant(who: Entrant) -> str:
    return f"{who[0]} {who[1]:g} s"


def _fidelity_grid(rows: Sequence[Row]) -> Grid:
    """Predictions against runs, of every problem that enough placements of were run."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["feasible"] and "predicted" in row:
            pairs[row["problem"]].append((row["predicted"], row["step_time"]))
    title = "Predicted against run"
    headings = ("problem", "placements", "Spearman", "mean error", "bias", "predicted best misses")
    lines = [_fidelity_line(p, found) for p, found in pairs.items() if len(found) >= FEWEST]
    return Grid(title, headings, lines)


def _fidelity_line(problem: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    predicted, run = zip(*pairs, strict=True)
    found = agreement(predicted, run)
    shares = (f"{found.mape:.1%}", f"{found.bias:+.1%}", f"{found.regret:.1%}")
    return [problem, str(found.pairs), f"{found.spearman:.3f}", *shares]


def _failure_grid(rows: Sequence[Row]) -> Grid:
    reasons = Counter((row["placer"], _short(row["error"])) for row in rows if row.get("error"))
    lines = [[placer, reason, str(count)] for (placer, reason), count in sorted(reasons.items())]
    return Grid("Failed cells", ("placer", "reason", "cells"), lines)


def _short(text: str) -> str:
    """``text``, or its begin and its end: a file's name and the reason stand there."""
    begin = LONGEST // 4
    return text if len(text) <= LONGEST else f"{text[:begin]}…{text[begin + 1 - LONGEST :]}"
