"""How well predictions agree with measurements: rank correlation, error, bias, regret."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gnnplace.errors import InputError

FEWEST = 3
"""Pairs below which a rank correlation says nothing."""
POLISH = 10
"""Sweeps of the median polish; it settles within a few."""


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured step times of the placements of one problem.

    Attributes:
        pairs: The number of placements that were predicted and measured.
        spearman: Spearman's rank correlation; nan if all predictions or measurements are equal.
        mape: Mean absolute error, relative to the measurement.
        bias: Mean error, relative to the measurement; negative where predictions are too fast.
        regret: How much slower the placement predicted to be best is than the best measured.
    """

    pairs: int
    spearman: float
    mape: float
    bias: float
    regret: float

    def __str__(self) -> str:
        return (
            f"Spearman {self.spearman:.3f}, MAPE {self.mape:.1%}, bias {self.bias:+.1%}, the "
            f"placement predicted best is {self.regret:.1%} slower than the best of {self.pairs} "
            "measured"
        )


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """Compares predictions with measurements.

    Args:
        predicted: Seconds, all positive and finite.
        measured: Seconds of the same placements.

    Raises:
        InputError: there are fewer than ``FEWEST`` pairs.
    """
    p, m = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    if len(p) != len(m) or len(p) < FEWEST:
        raise InputError(f"fidelity: {len(p)} placements were measured; at least {FEWEST} needed")
    flat = np.ptp(p) == 0 or np.ptp(m) == 0
    error = (p - m) / m
    return Agreement(
        pairs=len(p),
        spearman=float("nan") if flat else _rank_correlation(p, m),
        mape=float(np.abs(error).mean()),
        bias=float(error.mean()),
        regret=float(m[int(p.argmin())] / m.min() - 1.0),
    )


def _rank_correlation(predicted: np.ndarray, measured: np.ndarray) -> float:
    from scipy.stats import spearmanr  # takes a second to import

    return float(spearmanr(predicted, measured).statistic)


def shortest(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The shortest step time of each placement over all rounds. [rounds, placements]"""
    return [float(seconds) for seconds in np.min(np.asarray(rounds, dtype=float), axis=0)]


def settled(rounds: Sequence[Sequence[float]]) -> list[float]:
    """One step time of each placement from several rounds of measuring them all.

    A round's time of a placement is taken as the product of the placement's, the round's (how busy
    the machine was) and noise; the first two are found by median polish of the logarithms (Tukey,
    1977), so that single outliers do not count. Rounds have a factor of one in the median.

    Args:
        rounds: Seconds of each placement. [rounds, placements]
    """
    logs = np.log(np.asarray(rounds, dtype=float))
    placement, busy = np.zeros(logs.shape[1]), np.zeros(logs.shape[0])
    for _ in range(POLISH):
        placement = np.median(logs - busy[:, None], axis=0)
        busy = np.median(logs - placement[None, :], axis=1)
        busy -= np.median(busy)
    return [float(seconds) for seconds in np.exp(placement)]


def halves(
    rounds: Sequence[Sequence[float]],
    settle: Callable[[Sequence[Sequence[float]]], list[float]] = shortest,
) -> Agreement:
    """How well the first, third, ... round agree with the second, fourth, ...

    Args:
        rounds: Seconds of each placement. [rounds, placements]
        settle: What makes one step time of several rounds.

    Raises:
        InputError: fewer than two rounds, or too few placements.
    """
    if len(rounds) < 2:
        raise InputError("fidelity: one round of measuring says nothing of its noise")
    return agreement(settle(rounds[::2]), settle(rounds[1::2]))


def ceiling(reliability: float) -> float:
    """The correlation that a prediction without error would have with noisy measurements.

    Two halves that correlate with r make a whole of reliability 2 r / (1 + r) (Spearman, 1910;
    Brown, 1910); the truth correlates with it by the root of that (attenuation, Spearman, 1904).

    Args:
        reliability: Correlation of the halves, each a kind of average (`settled`, not `shortest`);
            0 or less says that nothing was measured.
    """
    r = max(reliability, 0.0)
    return float(np.sqrt(2.0 * r / (1.0 + r)))
