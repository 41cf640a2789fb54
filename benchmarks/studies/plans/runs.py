"""Published runs beside their predictions, and what choosing by prediction costs.

Runs are of one *question* if somebody could have chosen between them: the same model on the same
devices with the same batch. The **regret** of a question is what the run that is predicted to be
the fastest really took, over the fastest of them, less one; that of the best of three is of the
fastest in reality among the three that are predicted to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr


@dataclass(frozen=True)
class Run:
    """A published step and its prediction.

    Attributes:
        question: what it is an answer to.
        plan: that was run, in words.
        predicted: seconds.
        published: seconds.
    """

    question: str
    plan: str
    predicted: float
    published: float

    @property
    def error(self) -> float:
        """Predicted over published seconds, less one."""
        return self.predicted / self.published - 1.0


@dataclass(frozen=True)
class Summary:
    """What predictions of runs are worth.

    Attributes:
        runs: how many.
        error: mean of the errors' magnitudes.
        bias: median of predicted over published seconds.
        questions: with several runs.
        rank: mean of the questions' rank correlations, of those with three runs and more.
        regret: mean over the questions of choosing what is predicted to be the fastest.
        worst: the largest of these.
        three: mean regret of the best of the three that are predicted to be the fastest.
        random: mean regret of any of them.
    """

    runs: int
    error: float
    bias: float
    questions: int
    rank: float
    regret: float
    worst: float
    three: float
    random: float


def summary(runs: Sequence[Run]) -> Summary:
    """Errors, order and regret of runs."""
    several = [own for own in questions(runs).values() if len(own) > 1]
    regrets = [regret(own) for own in several]
    ranks = [
        float(
            spearmanr([r.predicted for r in own], [r.published for r in own]).statistic
        )
        for own in several
        if len(own) > 2
    ]
    return Summary(
        len(runs),
        float(np.mean([abs(r.error) for r in runs])),
        float(np.median([r.predicted / r.published for r in runs])),
        len(several),
        float(np.mean(ranks)) if ranks else float("nan"),
        float(np.mean(regrets)) if several else float("nan"),
        max(regrets, default=float("nan")),
        float(np.mean([regret(own, 3) for own in several]))
        if several
        else float("nan"),
        float(np.mean([_random(own) for own in several])) if several else float("nan"),
    )


def questions(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by what they answer."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.question].append(run)
    return dict(found)


def regret(runs: Sequence[Run], tried: int = 1) -> float:
    """Of one question: what the best of those tried took, over the fastest, less one."""
    first = sorted(runs, key=lambda r: r.predicted)[:tried]
    return min(r.published for r in first) / min(r.published for r in runs) - 1.0


def _random(runs: Sequence[Run]) -> float:
    return float(
        np.mean([r.published for r in runs]) / min(r.published for r in runs) - 1.0
    )
