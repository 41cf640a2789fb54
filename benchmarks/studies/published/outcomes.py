"""Published rows beside what is predicted of them, and what the predictions are worth.

A *question* is one model, GPUs, batch and length: what somebody could have chosen between.
*Near-best* rows take at most `NEAR` times the question's best. Rank correlation is of questions
with `RANKED` rows and more, regret of those with `CHOSEN`. *Near the limit* are rows predicted to
reserve between `LIMIT` GiB. A *straggler* is a row that took at least `LATE` seconds a micro-batch
longer than its prediction, for which nothing in its configuration accounts: it is seen only after
predictions were made, stays in the error, and is left out of rank and regret, which are told with
it as well.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.studies.plans.runs import Run, questions, regret, summary
from gnnplace.errors import FormatError
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import PlanAnswer

NEAR, RANKED, CHOSEN, LATE = 1.3, 8, 5, 0.7
LIMIT = (50.0, 110.0)
GIBIBYTE = 2.0**30


@dataclass(frozen=True)
class Outcome:
    """A published row and its answer.

    Attributes:
        question: what it is an answer to.
        model: whose sizes; left out together.
        setting: what its plan is priced on; None where it is not priced from a decoder's sizes.
        plan: its words.
        answer: what is predicted.
        seconds: published of a step; None where there are none that can be relied on.
        state: published bytes of state; None where there are none.
        peak: published bytes of the peak; None where there are none.
        ran: whether it ran, None where it is not known; false: it did not fit.
        alike: whether any cluster would see about the same.
        microbatches: of the step.
        predicted_state: bytes that the row's own counter would have, where it is not the first
            rank's state.
        predicted_peak: bytes, where the published peak is not of what is reserved.
        gpus: that it ran on; 0 where a set does not tell.
    """

    question: str
    model: str
    setting: PricingSetting | None
    plan: PlanSpec
    answer: PlanAnswer
    seconds: float | None = None
    state: float | None = None
    peak: float | None = None
    ran: bool | None = None
    alike: bool = True
    microbatches: int = 1
    predicted_state: float | None = None
    predicted_peak: float | None = None
    gpus: int = 0

    @property
    def sizes(self) -> PricingSetting:
        """What its plan is priced on, of a row that is priced from a decoder's sizes."""
        assert self.setting is not None
        return self.setting

    @property
    def error(self) -> float:
        """Predicted over published seconds, less one; nan where one of them is missing."""
        if self.seconds is None or self.answer.step_time is None:
            return float("nan")
        return self.answer.step_time / self.seconds - 1.0

    @property
    def late(self) -> bool:
        """Whether it is a straggler."""
        if self.seconds is None or self.answer.step_time is None:
            return False
        return self.seconds - self.answer.step_time >= LATE * self.microbatches


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a gzipped table.

    Raises:
        FormatError: it cannot be read.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    return list(csv.DictReader(io.StringIO(text)))


def number(text: str) -> float | None:
    """A cell's number; None where there is none."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if np.isfinite(found) else None


def _of(values: Sequence[float], take: Callable[[np.ndarray], float]) -> float:
    kept = np.array([v for v in values if np.isfinite(v)])
    return float(take(kept)) if kept.size else float("nan")


def mean(values: Sequence[float]) -> float:
    """Mean of magnitudes; nan of none."""
    return _of(values, lambda x: np.abs(x).mean())


def median(values: Sequence[float]) -> float:
    """Median of magnitudes; nan of none."""
    return _of(values, lambda x: np.median(np.abs(x)))


def timed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those with seconds on both sides."""
    return [o for o in outcomes if np.isfinite(o.error)]


def near_best(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that take at most `NEAR` times their question's best."""
    own = timed(outcomes)
    best: dict[str, float] = {}
    for o in own:
        best[o.question] = min(best.get(o.question, np.inf), o.seconds or np.inf)
    return [o for o in own if (o.seconds or 0.0) <= NEAR * best[o.question]]


def choices(outcomes: Sequence[Outcome]) -> tuple[float, float, float, int]:
    """Mean rank correlation, regret of the pick, of the best of three, questions of regret."""
    runs = [
        Run(o.question, str(o.plan), o.answer.step_time or 0.0, o.seconds or 0.0)
        for o in timed(outcomes)
    ]
    several = [own for own in questions(runs).values() if len(own) >= CHOSEN]
    ranks = [summary(own).rank for own in several if len(own) >= RANKED]
    return (
        _of(ranks, lambda x: x.mean()),
        mean([regret(own) for own in several]),
        mean([regret(own, 3) for own in several]),
        len(several),
    )


def fitting(outcomes: Sequence[Outcome]) -> tuple[float, float, int, float, float]:
    """What share is rightly said to fit or not: of all, near the limit; how many; of what ran, of
    what did not."""
    own = [o for o in outcomes if o.ran is not None and o.answer.fits is not None]
    right = np.array(
        [((o.answer.fits or 0.0) >= 0.5) == o.ran for o in own], dtype=float
    )
    peaks = np.array([o.answer.peak or 0.0 for o in own]) / GIBIBYTE
    near = (LIMIT[0] < peaks) & (peaks < LIMIT[1])
    ran = np.array([bool(o.ran) for o in own], dtype=bool)

    def part(chosen: np.ndarray) -> float:
        return (
            float(right[chosen].mean()) if len(own) and chosen.any() else float("nan")
        )

    whole = np.ones(len(own), dtype=bool)
    return (
        part(whole),
        part(near) if len(own) else np.nan,
        len(own),
        part(ran),
        part(~ran),
    )


def coverage(outcomes: Sequence[Outcome]) -> float:
    """The share of published steps inside of their intervals."""
    own = timed(outcomes)
    inside = [
        (o.answer.low or 0.0) <= (o.seconds or 0.0) <= (o.answer.high or np.inf)
        for o in own
    ]
    return float(np.mean(inside)) if own else float("nan")


def byte_errors(outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
    """Relative errors of state and of peak, of the rows that have them."""
    state, peak = [], []
    for o in outcomes:
        own = o.answer.state_first if o.predicted_state is None else o.predicted_state
        if o.state and own is not None:
            state.append(own / o.state - 1.0)
        held = o.answer.peak if o.predicted_peak is None else o.predicted_peak
        if o.peak and held is not None:
            peak.append(held / o.peak - 1.0)
    return state, peak
