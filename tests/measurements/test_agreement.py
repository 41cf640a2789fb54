"""Agreement of predictions and measurements, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from gnnplace.errors import InputError
from gnnplace.measurements.agreement import agreement


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
