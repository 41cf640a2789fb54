"""Geometric means of step time over the best known, apart for every family or cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gnnplace.bench.best_known import BestKnown, ProblemId, problem_id
from gnnplace.bench.standings import Entrant
from gnnplace.bench.statistics import Interval, nested_geometric_interval

LABELS = ("family", "cluster")
Row = Mapping[str, Any]
Groups = dict[Entrant, dict[ProblemId, list[float]]]


def breakdown(
    rows: Iterable[Row], best: Mapping[ProblemId, BestKnown], label: str
) -> dict[str, dict[Entrant, Interval]]:
    """By value of a label, by placer and budget: ratio over the best known.

    Intervals are over problems and seeds. What is infeasible is in none.

    Args:
        rows: cells; those without the label (of older runs) are left out.
        best: best known step times; at least those of the rows.
        label: one of ``LABELS``.
    """
    found: dict[str, Groups] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        if row["feasible"] and label in row:
            ratio = row["step_time"] / best[problem_id(row)].step_time
            found[row[label]][row["placer"], row["budget"]][problem_id(row)].append(ratio)
    return {value: _means(groups) for value, groups in sorted(found.items())}


def _means(groups: Groups) -> dict[Entrant, Interval]:
    means = {who: nested_geometric_interval(list(mine.values())) for who, mine in groups.items()}
    return {who: interval for who, interval in means.items() if interval is not None}
