"""Paired comparison: every placer against a rival at the same budget, on the problems both solved.

For problem p and seed s the ratio is the placer's step time over the rival's with the same seed (or
over the rival's geometric mean where it did not run with s, as of constructions). The figure is the
geometric mean of ratios with a 95 % bootstrap interval over problems and seeds; pairs remove what
makes one problem harder than another. Where the interval holds 1 the two cannot be told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnplace.bench.best_known import ProblemId, problem_id
from gnnplace.bench.standings import RIVAL, Entrant
from gnnplace.bench.statistics import Interval, nested_geometric_interval

Row = Mapping[str, Any]
Seeds = dict[int, float]
BETTER, WORSE, NOISE = "shorter", "longer", "not told apart"


@dataclass(frozen=True)
class Pairing:
    """A placer against the rival.

    Attributes:
        placer: its name.
        budget: seconds that both had.
        ratio: the ratio of step times over the rival's; below 1 the placer's are shorter.
        unpaired: problems that only one of both solved.
    """

    placer: str
    budget: float
    ratio: Interval
    unpaired: int

    @property
    def verdict(self) -> str:
        """What the interval says."""
        if self.ratio.low <= 1.0 <= self.ratio.high:
            return NOISE
        return BETTER if self.ratio.high < 1.0 else WORSE


def pairings(rows: Iterable[Row], rival: str = RIVAL) -> list[Pairing]:
    """Everybody against ``rival`` at the budgets that it ran with, by budget, the best first."""
    found = _by_seed(rows)
    result = []
    for (placer, budget), mine in found.items():
        theirs = found.get((rival, budget))
        if placer == rival or theirs is None:
            continue
        both = [p for p in mine if p in theirs]
        ratio = nested_geometric_interval([_ratios(mine[p], theirs[p]) for p in both])
        if ratio is not None:
            result.append(Pairing(placer, budget, ratio, len(mine.keys() ^ theirs.keys())))
    return sorted(result, key=lambda pairing: (pairing.budget, pairing.ratio.mean, pairing.placer))


def _by_seed(rows: Iterable[Row]) -> dict[Entrant, dict[ProblemId, Seeds]]:
    found: dict[Entrant, dict[ProblemId, Seeds]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["feasible"]:
            mine = found[row["placer"], row["budget"]]
            mine[problem_id(row)][row["seed"]] = row["step_time"]
    return found


def _ratios(mine: Seeds, theirs: Seeds) -> list[float]:
    mean = float(np.exp(np.mean(np.log(list(theirs.values())))))
    return [seconds / theirs.get(seed, mean) for seed, seconds in mine.items()]
