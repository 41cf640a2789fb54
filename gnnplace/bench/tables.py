"""Tables of rows: standings, pairs, profiles, families, clusters, fidelity, failures.

Geometric means of step time over the best known, apart for every family or cluster.

Paired comparison: every placer against a rival at the same budget, on the problems both solved.

For problem p and seed s the ratio is the placer's step time over the rival's with the same seed (or
over the rival's geometric mean where it did not run with s, as of constructions). The figure is the
geometric mean of ratios with a 95 % bootstrap interval over problems and seeds; pairs remove what
makes one problem harder than another. Where the interval holds 1 the two cannot be told apart.

Performance profiles (Dolan and Moré, Mathematical Programming 91, 2002).

For each placer, the share of problems that it solves within a factor of the best known step time.
At factor 1: how often it is the best; far right: how often it finds anything feasible at all. One
bad problem cannot move a profile the way it moves a mean.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from gnnplace.bench.rows import STEPS, get_budget_unit
from gnnplace.bench.standings import (
    RIVAL,
    BestKnown,
    Entrant,
    ProblemId,
    Standing,
    problem_id,
    standings,
    step_times,
)
from gnnplace.bench.statistics import Interval, average_nested_geometric
from gnnplace.measurements import FEWEST, agreement
from gnnplace.report import TextTable, text_table

LABELS = ("family", "cluster")
Row = Mapping[str, Any]
Groups = dict[Entrant, dict[ProblemId, list[float]]]


def breakdown(
    rows: Iterable[Row], best: Mapping[ProblemId, BestKnown], label: str
) -> dict[str, dict[Entrant, Interval]]:
    """Return the ratio over the best known, by value of a label, then by placer and budget.

    Intervals are over problems and seeds. What is infeasible is in none.

    Args:
        rows: Cells; those without the label are left out.
        best: Best known step times; at least those of the rows.
        label: One of ``LABELS``.
    """
    ratios: dict[str, Groups] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        if row["feasible"] and label in row:
            ratio = row["step_time"] / best[problem_id(row)].step_time
            ratios[row[label]][row["placer"], row["budget"]][problem_id(row)].append(
                ratio
            )
    means: dict[str, dict[Entrant, Interval]] = {}
    for value, groups in sorted(ratios.items()):
        means[value] = {}
        for entrant, by_problem in groups.items():
            interval = average_nested_geometric(list(by_problem.values()))
            if interval is not None:
                means[value][entrant] = interval
    return means


Seeds = dict[int, float]
BETTER = "shorter"
WORSE = "longer"
NOISE = "not told apart"


@dataclass(frozen=True)
class Pairing:
    """A placer against the rival.

    Attributes:
        placer: Its name.
        budget: Seconds that both had.
        ratio: The ratio of step times over the rival's; below 1 the placer's are shorter.
        unpaired: Problems that only one of both solved.
    """

    placer: str
    budget: float
    ratio: Interval
    unpaired: int

    @property
    def verdict(self) -> str:
        """Return the verdict of the interval: better, worse or noise."""
        if self.ratio.low <= 1.0 <= self.ratio.high:
            return NOISE
        if self.ratio.high < 1.0:
            return BETTER
        return WORSE


def pairings(rows: Iterable[Row], rival: str = RIVAL) -> list[Pairing]:
    """Return everybody against ``rival`` at the budgets it ran with, by budget, the best first."""
    times = _group_by_seed(rows)
    result = []
    for (placer, budget), own_times in times.items():
        rival_times = times.get((rival, budget))
        if placer == rival or rival_times is None:
            continue
        both = [p for p in own_times if p in rival_times]
        ratio = average_nested_geometric(
            [_ratios(own_times[p], rival_times[p]) for p in both]
        )
        if ratio is not None:
            result.append(
                Pairing(
                    placer, budget, ratio, len(own_times.keys() ^ rival_times.keys())
                )
            )
    return sorted(
        result, key=lambda pairing: (pairing.budget, pairing.ratio.mean, pairing.placer)
    )


def _group_by_seed(rows: Iterable[Row]) -> dict[Entrant, dict[ProblemId, Seeds]]:
    times: dict[Entrant, dict[ProblemId, Seeds]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in rows:
        if row["feasible"]:
            entrant_times = times[row["placer"], row["budget"]]
            entrant_times[problem_id(row)][row["seed"]] = row["step_time"]
    return times


def _ratios(mine: Seeds, theirs: Seeds) -> list[float]:
    logs = np.log(list(theirs.values()))
    mean = float(np.exp(np.mean(logs)))
    return [seconds / theirs.get(seed, mean) for seed, seconds in mine.items()]


@dataclass(frozen=True)
class Control:
    """The learned placer against one of its controls.

    Attributes:
        placer: The learned placer.
        control: The same search with weights of no training, or the graph network alone.
        budget: The budget of the placer.
        control_budget: The budget of the control.
        ratio: Step times over the control's, paired by problem; bootstrapped over families.
        families: How many families there are.
    """

    placer: str
    control: str
    budget: float
    control_budget: float
    ratio: Interval
    families: int


def controls(rows: Iterable[Row]) -> list[Control]:
    """Return the learned placers against their controls, at the same budget or at none.

    The mean is over families' means, and families are drawn anew with their problems: graphs of one
    family are no independent evidence.
    """
    rows = list(rows)
    families = {}
    for row in rows:
        families[problem_id(row)] = str(row.get("family", row["problem"]))
    times = _group_by_seed(rows)
    result = []
    for placer, budget in sorted(times):
        for control, control_budget in sorted(times):
            # Untrained weights search as long; the graph network alone does not search at all.
            same = control == UNTRAINED and control_budget == budget
            alone = control == NETWORK and control_budget == 0
            if placer not in LEARNED or not (same or alone):
                continue
            ratios: dict[str, list[float]] = defaultdict(list)
            for problem in (
                times[placer, budget].keys() & times[control, control_budget].keys()
            ):
                logs = np.log(list(times[placer, budget][problem].values())).mean()
                logs -= np.log(
                    list(times[control, control_budget][problem].values())
                ).mean()
                ratios[families[problem]].append(float(np.exp(logs)))
            groups = [ratios[family] for family in sorted(ratios)]
            ratio = average_nested_geometric(groups)
            if ratio is not None:
                result.append(
                    Control(
                        placer=placer,
                        control=control,
                        budget=budget,
                        control_budget=control_budget,
                        ratio=ratio,
                        families=len(groups),
                    )
                )
    return result


LEARNED = ("learned", "best")
UNTRAINED = "learned-untrained"
NETWORK = "gnn"
Best = Mapping[ProblemId, BestKnown]
LONGEST = 80  # letters of a reason


def tables(rows: Sequence[Row], best: Best, rival: str, title: str) -> list[TextTable]:
    """Return all tables that the rows have something to say in; standings are the first.

    Args:
        rows: The rows of one suite.
        best: Best known step times; at least those of the rows.
        rival: The placer that others are compared with.
        title: What was run; the title of the standings adds the rival.
    """
    heading = f"{title}; against {rival}"
    ranking = standings(rows, best, rival)
    grids = [
        standings_grid(ranking, rival, heading, find_budget_unit(rows)),
        _pairing_grid(rows, rival),
        control_grid(rows),
        _profile_grid(rows, best),
        *(_breakdown_grid(rows, best, label) for label in LABELS),
        _fidelity_grid(rows),
        _failure_grid(rows),
    ]
    return [grid for grid in grids if grid.rows]


def find_budget_unit(rows: Iterable[Row]) -> str:
    """Return the unit of the rows' budgets as tables write it, "s" or "steps"."""
    if any(get_budget_unit(row) == STEPS for row in rows):
        return STEPS
    return "s"


def standings_grid(
    found: Sequence[Standing], rival: str, heading: str, unit: str = "s"
) -> TextTable:
    """Return the table of everybody against the best known and the portfolio.

    Args:
        found: The standings.
        rival: The placer that wins and losses are counted against.
        heading: The title.
        unit: The unit of budgets.
    """
    headings: tuple[str, ...] = (
        "placer",
        "budget",
        "over best known",
        "gap closed",
        "pooled",
    )
    headings += (f"won/lost/tied ({rival})", "infeasible", "seconds")
    return text_table(
        heading, headings, [_standing_line(standing, unit) for standing in found]
    )


def _standing_line(standing: Standing, unit: str) -> list[str]:
    versus = (standing.wins, standing.losses, standing.ties)
    return [
        standing.placer,
        f"{standing.budget:g} {unit}",
        interval_text(standing.ratio),
        interval_text(standing.closed, ".0%"),
        "-" if isnan(standing.pooled) else f"{standing.pooled:.0%}",
        "/".join(map(str, versus)) if any(versus) else "-",
        f"{standing.infeasible} of {standing.rows}",
        f"{standing.seconds:.3g}",
    ]


def _pairing_grid(rows: Sequence[Row], rival: str) -> TextTable:
    title = f"Paired: step time over {rival}'s at the same budget"
    headings = (
        "placer",
        "budget",
        "ratio",
        "problems",
        "only one solved",
        "step times are",
    )
    unit = find_budget_unit(rows)
    lines = [
        [
            pairing.placer,
            f"{pairing.budget:g} {unit}",
            interval_text(pairing.ratio),
            str(pairing.ratio.count),
            str(pairing.unpaired),
            pairing.verdict,
        ]
        for pairing in pairings(rows, rival)
    ]
    return text_table(title, headings, lines)


def control_grid(rows: Sequence[Row]) -> TextTable:
    """Return the learned placers beside their controls."""
    unit = find_budget_unit(rows)
    lines = [
        [
            control.placer,
            f"{control.budget:g} {unit}",
            f"{control.control}, {control.control_budget:g} {unit}",
            interval_text(control.ratio),
            str(control.families),
        ]
        for control in controls(rows)
    ]
    headings = (
        "placer",
        "budget",
        "control",
        "step time over the control's",
        "families",
    )
    return text_table(
        "Beside the controls, paired and bootstrapped over families", headings, lines
    )


def _profile_grid(rows: Sequence[Row], best: Best) -> TextTable:
    headings = ("placer", "budget", *(f"{factor:g}" for factor in FACTORS), "ever")
    unit = find_budget_unit(rows)
    lines = [
        [
            profile.placer,
            f"{profile.budget:g} {unit}",
            *(f"{profile.share(factor):.0%}" for factor in FACTORS),
            f"{len(profile.ratios) / profile.tried:.0%}",
        ]
        for profile in performance_profiles(rows, best)
    ]
    return text_table(
        "Share of problems within a factor of the best known", headings, lines
    )


def _breakdown_grid(rows: Sequence[Row], best: Best, label: str) -> TextTable:
    ratios = breakdown(rows, best, label)
    entrants = {who: None for means in ratios.values() for who in means}
    unit = find_budget_unit(rows)
    lines = [
        [
            f"{who[0]} {who[1]:g} {unit}",
            *(interval_text(means.get(who)) for means in ratios.values()),
        ]
        for who in sorted(entrants, key=lambda who: (who[1], who[0]))
    ]
    return text_table(f"Over best known, by {label}", ("placer", *ratios), lines)


def _fidelity_grid(rows: Sequence[Row]) -> TextTable:
    """Return predictions beside runs, for every problem of which enough placements were run."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["feasible"] and "predicted" in row:
            pairs[row["problem"]].append((row["predicted"], row["step_time"]))
    title = "Predicted against run"
    headings = (
        "problem",
        "placements",
        "Spearman",
        "mean error",
        "bias",
        "predicted best misses",
    )
    lines = []
    for problem, problem_pairs in pairs.items():
        if len(problem_pairs) >= FEWEST:
            predicted, run = zip(*problem_pairs, strict=True)
            fidelity = agreement(predicted, run)
            shares = (
                f"{fidelity.mape:.1%}",
                f"{fidelity.bias:+.1%}",
                f"{fidelity.regret:.1%}",
            )
            lines.append(
                [problem, str(fidelity.pairs), f"{fidelity.spearman:.3f}", *shares]
            )
    return text_table(title, headings, lines)


def _failure_grid(rows: Sequence[Row]) -> TextTable:
    reasons = Counter(
        (row["placer"], _short(row["error"])) for row in rows if row.get("error")
    )
    lines = [
        [placer, reason, str(count)]
        for (placer, reason), count in sorted(reasons.items())
    ]
    return text_table("Failed cells", ("placer", "reason", "cells"), lines)


def _short(text: str) -> str:
    """Return ``text``, or its begin and end: a file's name and the reason stand there."""
    begin = LONGEST // 4
    if len(text) <= LONGEST:
        return text
    return f"{text[:begin]}…{text[begin + 1 - LONGEST :]}"


def interval_text(interval: Interval | None, form: str = ".3f") -> str:
    """Return a mean as text, with its interval if that has a width; a dash for None."""
    if interval is None:
        return "-"
    if interval.low == interval.high:
        return f"{interval.mean:{form}}"
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


FACTORS = (1.0, 1.01, 1.05, 1.1, 1.25, 1.5, 2.0)
EQUAL = 1e-9  # relative: the best known itself, after a file


@dataclass(frozen=True)
class Profile:
    """A placer's ratios over the best known, problem by problem.

    Attributes:
        placer: Its name.
        budget: Seconds that it had.
        ratios: The ratios over the best known, of problems solved, ascending.
        tried: Problems.
    """

    placer: str
    budget: float
    ratios: tuple[float, ...]
    tried: int

    def share(self, factor: float) -> float:
        """Return the share of all problems tried that were solved within ``factor``, 0 to 1."""
        return sum(ratio <= factor * (1 + EQUAL) for ratio in self.ratios) / self.tried


def performance_profiles(
    rows: Iterable[Mapping[str, Any]], best: Mapping[ProblemId, BestKnown]
) -> list[Profile]:
    """Return a profile of every placer and budget.

    They are sorted by budget, then those first who are within 5 % most often.

    Args:
        rows: Cells.
        best: Best known step times; at least those of the rows.
    """
    cells: dict[Entrant, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["placer"], row["budget"]].append(row)
    profiles = []
    for entrant, entrant_rows in cells.items():
        ratios = [
            seconds / best[p].step_time
            for p, seconds in step_times(entrant_rows).items()
        ]
        tried = {problem_id(row) for row in entrant_rows}
        profiles.append(Profile(*entrant, tuple(sorted(ratios)), len(tried)))
    return sorted(
        profiles,
        key=lambda profile: (profile.budget, -profile.share(1.05), profile.placer),
    )
