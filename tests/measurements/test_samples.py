"""Agreement of predictions and measurements, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gnnplace.errors import InputError
from gnnplace.measurements.samples import (
    agreement,
    ceiling,
    halves,
    settle_step_times,
    shortest,
)


def test_numbers_by_hand():
    found = agreement([1.0, 2.0, 3.0, 5.0], [2.0, 4.0, 3.0, 5.0])
    assert found.spearman == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert found.mape == pytest.approx(0.25)
    assert found.bias == pytest.approx(-0.25)
    assert found.regret == 0.0


def test_regret_is_what_trusting_the_prediction_costs():
    found = agreement([1.0, 2.0, 3.0], [3.0, 2.0, 4.0])
    assert found.regret == pytest.approx(0.5)


def test_equal_numbers_have_no_rank():
    assert math.isnan(agreement([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]).spearman)


def test_too_few_are_refused():
    with pytest.raises(InputError, match="2 placements"):
        agreement([1.0, 2.0], [1.0, 2.0])


TRUE = np.linspace(0.02, 0.05, 20)


def test_a_busy_round_and_an_outlier_leave_what_is_settled_alone():
    rounds = np.stack([TRUE, 1.5 * TRUE, TRUE])
    rounds[0, 3] *= 4.0
    assert settle_step_times(rounds.tolist()) == pytest.approx(TRUE.tolist())
    assert settle_step_times([TRUE.tolist()]) == pytest.approx(TRUE.tolist())


def test_more_rounds_settle_nearer_to_the_truth():
    rng = np.random.default_rng(0)
    noisy = TRUE * np.exp(rng.normal(0, 0.1, (16, 20)) + rng.normal(0, 0.3, (16, 1)))
    off = [
        np.ptp(np.log(settle_step_times(noisy[:k].tolist()) / TRUE)) for k in (1, 16)
    ]
    assert off[1] < 0.6 * off[0]


def test_the_ceiling_is_what_the_truth_itself_would_reach():
    """Rank correlation of the truth with noisy measurements, against what their halves say."""
    rng = np.random.default_rng(1)
    reached, told = [], []
    for _ in range(60):
        rounds = (TRUE * np.exp(rng.normal(0, 0.3, (4, 20)))).tolist()
        reached.append(agreement(TRUE.tolist(), settle_step_times(rounds)).spearman)
        told.append(ceiling(halves(rounds, settle_step_times).spearman))
    assert np.mean(told) == pytest.approx(np.mean(reached), abs=0.04)
    assert ceiling(1.0) == 1.0
    assert ceiling(-0.2) == 0.0


def test_one_round_has_no_halves():
    with pytest.raises(InputError, match="one round"):
        halves([TRUE.tolist()])


def test_disturbances_that_only_add_leave_the_shortest_nearest_to_the_truth():
    rng = np.random.default_rng(2)
    rounds = (TRUE * np.exp(rng.exponential(0.15, (6, 20)))).tolist()
    off = [
        np.abs(np.log(np.divide(one(rounds), TRUE))).mean()
        for one in (shortest, settle_step_times)
    ]
    assert off[0] < 0.4 * off[1]
    assert shortest([[2.0, 1.0], [1.5, 3.0]]) == [1.5, 1.0]
    assert halves(rounds).spearman > halves(rounds, settle_step_times).spearman
