"""How well predictions agree with measurements: rank correlation, error, bias, regret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from gnnplace.errors import InputError

FEWEST = 3
"""Pairs below which a rank correlation says nothing."""


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured step times of the placements of one problem.

    Attributes:
        pairs: Number of placements.
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
        InputError: too few pairs.
    """
    p, m = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    if len(p) != len(m) or len(p) < FEWEST:
        raise InputError(f"fidelity: {len(p)} placements were measured; at least {FEWEST} needed")
    flat = np.ptp(p) == 0 or np.ptp(m) == 0
    error = (p - m) / m
    return Agreement(
        pairs=len(p),
        spearman=float("nan") if flat else float(spearmanr(p, m).statistic),
        mape=float(np.abs(error).mean()),
        bias=float(error.mean()),
        regret=float(m[int(p.argmin())] / m.min() - 1.0),
    )
