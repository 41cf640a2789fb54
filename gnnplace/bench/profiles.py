"""Performance profiles (Dolan and Moré, Mathematical Programming 91, 2002).

For each placer, the share of problems that it solves within a factor of the best known step time.
At factor 1: how often it is the best; far right: how often it finds anything feasible at all. One
bad problem cannot move a profile the way it moves a mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnnplace.bench.best_known import BestKnown, ProblemId, problem_id
from gnnplace.bench.standings import Entrant, step_times

FACTORS = (1.0, 1.01, 1.05, 1.1, 1.25, 1.5, 2.0)
EQUAL = 1e-9  # relative: the best known itself, after a file


@dataclass(frozen=True)
class Profile:
    """How far a placer is from the best known, problem by problem.

    Attributes:
        placer: its name.
        budget: seconds that it had.
        ratios: over the best known, of problems solved, ascending.
        tried: problems.
    """

    placer: str
    budget: float
    ratios: tuple[float, ...]
    tried: int

    def share(self, factor: float) -> float:
        """Share of all problems tried that were solved within ``factor``, 0 to 1."""
        return sum(ratio <= factor * (1 + EQUAL) for ratio in self.ratios) / self.tried


def performance_profiles(
    rows: Iterable[Mapping[str, Any]], best: Mapping[ProblemId, BestKnown]
) -> list[Profile]:
    """A profile of every placer and budget, by budget, those first who are within 5 % most often.

    Args:
        rows: cells.
        best: best known step times; at least those of the rows.
    """
    cells: dict[Entrant, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["placer"], row["budget"]].append(row)
    found = [_profile(who, mine, best) for who, mine in cells.items()]
    return sorted(found, key=lambda profile: (profile.budget, -profile.share(1.05), profile.placer))


def _profile(
    who: Entrant, rows: Sequence[Mapping[str, Any]], best: Mapping[ProblemId, BestKnown]
) -> Profile:
    ratios = [seconds / best[p].step_time for p, seconds in step_times(rows).items()]
    return Profile(*who, tuple(sorted(ratios)), len({problem_id(row) for row in rows}))
