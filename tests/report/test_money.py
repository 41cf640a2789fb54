"""What plans cost by the user's own prices."""

from __future__ import annotations

import pytest

from gnnplace.errors import InputError
from gnnplace.problem import load_cluster
from gnnplace.report.money import PlanCost, compute_cost, cost_lines, read_prices

H100 = load_cluster("8xH100")


def test_all_gpus_of_a_cluster_are_paid_for_the_whole_step():
    cost = compute_cost(
        seconds=36.0,
        tokens=1_000_000,
        cluster=H100,
        prices={"h100": 2.5},
        run_tokens=1e12,
    )
    assert cost.step == pytest.approx(8 * 2.5 * 36 / 3600)
    assert cost.billion_tokens == pytest.approx(1000 * cost.step)
    assert cost.run == pytest.approx(1e6 * cost.step)
    assert cost.kilowatt_hours == pytest.approx(8 * 0.7 * 36 / 3600 * 1000)


def test_examples_that_are_no_tokens_cost_by_the_step():
    cost = compute_cost(seconds=3.6, tokens=None, cluster=H100, prices={"h100": 1.0})
    assert (cost.billion_tokens, cost.run) == (None, None)
    assert cost_lines(cost) == [
        "  costs $0.008 a step, at the prices that were given",
        "  5.6 kWh a thousand steps at the cards' power limits",
    ]


def test_large_sums_have_no_cents():
    cost = PlanCost(
        step=0.25, billion_tokens=88.336, run=1_325_040.4, kilowatt_hours=None
    )
    words = "$0.25 a step, $88.34 a billion tokens, $1,325,040 for 15T tokens"
    assert cost_lines(cost, 15e12) == [
        f"  costs {words}, at the prices that were given"
    ]


def test_prices_are_read_by_any_name_of_a_kind():
    assert read_prices("H100=2.49, A100-80=$1.79", [H100]) == {
        "h100": 2.49,
        "a100-80": 1.79,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h100", "must be KIND=USD"),
        ("h100=free", "must be KIND=USD"),
        ("h100=-1", "must be KIND=USD"),
        ("h100=0", "must be KIND=USD"),
        ("h100=nan", "must be KIND=USD"),
        ("h100=1,h100=2", "is given twice"),
        ("a100=1", "has none of 'h100'"),
    ],
)
def test_wrong_prices_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        read_prices(text, [H100])
